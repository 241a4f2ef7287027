// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_PARALLEL_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_PARALLEL_H_

/// \file
/// Splits the work of kernels by its size alone, never by the pool's width.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "crosshatch/base/thread_pool.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Work below this many elementary steps (about a nanosecond each at worst) is
/// not worth waking a thread for.
inline constexpr int64_t kPartGrain = 16384;
inline constexpr int64_t kMaxParts = 64;

/// Returns the parts for `items` items of `cost` steps each; 0 without items.
/// Few parts are a power of two, as pool widths usually are.
inline int64_t PartsFor(int64_t items, int64_t cost) {
  if (items <= 0) return 0;
  const int64_t by_cost = items * std::max<int64_t>(cost, 1) / kPartGrain;
  const int64_t parts =
      std::clamp<int64_t>(by_cost, 1, std::min(items, kMaxParts));
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(parts)));
}

/// Items [begin, end) of part `part` of `parts`: sizes differ by at most one.
struct PartRange {
  int64_t begin;
  int64_t end;
};
inline PartRange RangeOfPart(int64_t items, int64_t parts, int64_t part) {
  const int64_t base = items / parts;
  const int64_t rest = items % parts;
  const int64_t begin = part * base + std::min(part, rest);
  return {begin, begin + base + (part < rest ? 1 : 0)};
}

/// Calls body(part) for each part, on the context's pool if it has one.
inline void ForParts(KernelContext& context, int64_t parts,
                     absl::FunctionRef<void(int64_t)> body) {
  if (parts == 1 || context.pool == nullptr) {
    for (int64_t part = 0; part < parts; ++part) body(part);
    return;
  }
  if (parts > 0) context.pool->ParallelFor(parts, body);
}

/// Calls body(begin, end) on ranges that cover [0, items).
inline void ForRanges(KernelContext& context, int64_t items, int64_t cost,
                      absl::FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t parts = PartsFor(items, cost);
  ForParts(context, parts, [&](int64_t part) {
    const PartRange range = RangeOfPart(items, parts, part);
    body(range.begin, range.end);
  });
}

/// Calls body(cursor, start, count) for pieces of at most `piece` elements of
/// each row. `cost` is that of one element.
template <typename F>
void ForRowPieces(KernelContext& context, const StridedLoop& loop,
                  int64_t piece, int64_t cost, const F& body) {
  const int64_t inner = loop.inner();
  const int64_t pieces = (inner + piece - 1) / piece;
  ForRanges(context, loop.rows() * pieces, std::min(inner, piece) * cost,
            [&](int64_t begin, int64_t end) {
              for (int64_t unit = begin; unit < end; ++unit) {
                const RowCursor cursor(loop, unit / pieces);
                const int64_t start = unit % pieces * piece;
                body(cursor, start, std::min(piece, inner - start));
              }
            });
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_PARALLEL_H_
