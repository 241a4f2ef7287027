// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

/// Returns the row of the local table for row `r` of the batch.
template <typename Args>
int64_t IdOf(const Args& args, int64_t r) {
  return internal::IndexAt("embedding", args.ids, args.ids_dtype, r) -
         args.first;
}

void Embedding(const EmbeddingArgs& args, KernelContext& context) {
  const int64_t size = SizeOf(args.dtype);
  internal::ForRanges(
      context, args.rows, args.cols / 4 + 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t id = IdOf(args, r);
          char* to = static_cast<char*>(args.out.data) +
                     r * args.out.row_stride * size;
          if (args.cols == 0) continue;
          if (id >= 0 && id < args.table_rows) {
            std::memcpy(to,
                        static_cast<const char*>(args.table.data) +
                            id * args.table.row_stride * size,
                        static_cast<size_t>(args.cols * size));
          } else {
            std::memset(to, 0, static_cast<size_t>(args.cols * size));
          }
        }
      });
}

/// Rows of the batch, grouped by their row of the table and in order within.
struct Groups {
  int64_t*
      ends;  ///< [table_rows + 1], [0] = 0: group g is [ends[g], ends[g + 1]).
  int64_t* order;  ///< [rows]
};

Groups GroupRows(const EmbeddingBackwardArgs& args) {
  // ends[g + 2] counts group g, then becomes its start shifted by one place;
  // placing the rows moves each start to its end.
  Groups groups = {static_cast<int64_t*>(args.workspace), nullptr};
  groups.order = groups.ends + args.table_rows + 2;
  int64_t* const places = groups.ends + 1;
  std::fill(groups.ends, groups.ends + args.table_rows + 2, int64_t{0});
  const auto group_of = [&](int64_t r) {
    const int64_t id = IdOf(args, r);
    return id >= 0 && id < args.table_rows ? id : int64_t{-1};
  };
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t group = group_of(r);
    if (group >= 0) ++places[group + 1];
  }
  for (int64_t g = 0; g < args.table_rows; ++g) places[g + 1] += places[g];
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t group = group_of(r);
    if (group >= 0) groups.order[places[group]++] = r;
  }
  return groups;
}

template <typename T>
void EmbeddingBackwardAs(const EmbeddingBackwardArgs& args,
                         KernelContext& context) {
  constexpr int64_t kPiece = 1024;
  const Groups groups = GroupRows(args);
  const int64_t cost =
      args.cols * (args.rows + args.table_rows) / args.table_rows / 2;
  internal::ForRanges(
      context, args.table_rows, cost, [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T sum[kPiece];
        HWY_ALIGN T buffer[kPiece];
        for (int64_t g = begin; g < end; ++g) {
          const int64_t first = groups.ends[g];
          const int64_t last = groups.ends[g + 1];
          if (first == last && args.mode == WriteMode::kAccumulate) continue;
          for (int64_t start = 0; start < args.cols; start += kPiece) {
            const int64_t count = std::min(kPiece, args.cols - start);
            void* to = internal::ElementAt(args.dtable.data, args.dtable_dtype,
                                           g * args.dtable.row_stride + start);
            std::fill(sum, sum + count, T(0));
            for (int64_t i = first; i < last; ++i) {
              const T* grad =
                  Staged(internal::ElementAt(
                             args.grad.data, args.dtype,
                             groups.order[i] * args.grad.row_stride + start),
                         args.dtype, count, buffer);
              for (int64_t c = 0; c < count; ++c) sum[c] += grad[c];
            }
            if (args.mode == WriteMode::kAccumulate) {
              LoadRun(to, args.dtable_dtype, 1, count, buffer);
              for (int64_t c = 0; c < count; ++c) sum[c] += buffer[c];
            }
            StoreRun(sum, to, args.dtable_dtype, 1, count);
          }
        }
      });
}

void EmbeddingBackward(const EmbeddingBackwardArgs& args,
                       KernelContext& context) {
  if (args.table_rows * args.cols == 0) return;
  internal::DispatchFloat(args.dtype, "embedding_backward",
                          [&](auto zero) HWY_ATTR {
                            EmbeddingBackwardAs<decltype(zero)>(args, context);
                          });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(Embedding)
CH_CPU_KERNEL(EmbeddingBackward)

namespace internal {

int64_t CpuEmbeddingBackwardWorkspaceBytes(const EmbeddingBackwardArgs& args) {
  return (args.rows + args.table_rows + 2) *
         static_cast<int64_t>(sizeof(int64_t));
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
