// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/box_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

void ForEachRun(ShapeView sizes, const Box& box,
                absl::FunctionRef<void(int64_t first, int64_t count)> run) {
  ForEachRunOfBoth(
      sizes, box, sizes, box,
      [&](int64_t first, int64_t, int64_t count) { run(first, count); });
}

void ForEachRunOfBoth(
    ShapeView a_sizes, const Box& a_box, ShapeView b_sizes, const Box& b_box,
    absl::FunctionRef<void(int64_t a_first, int64_t b_first, int64_t count)>
        run) {
  CH_CHECK(a_box.sizes == b_box.sizes)
      << ToString(a_box) << " and " << ToString(b_box);
  CH_CHECK(a_sizes.size() == a_box.sizes.size() &&
           Contains(WholeBox(a_sizes), a_box))
      << ToString(a_box) << " of " << ToString(a_sizes);
  CH_CHECK(b_sizes.size() == b_box.sizes.size() &&
           Contains(WholeBox(b_sizes), b_box))
      << ToString(b_box) << " of " << ToString(b_sizes);
  if (a_box.empty()) return;

  // Dims after `run_dim` are whole in both tensors, so each index of the dims
  // before it starts one run.
  int run_dim = a_box.ndim();
  int64_t count = 1;
  while (run_dim > 0) {
    --run_dim;
    const auto d = static_cast<size_t>(run_dim);
    count *= a_box.sizes[d];
    if (a_box.sizes[d] != a_sizes[d] || a_box.sizes[d] != b_sizes[d]) break;
  }
  const Shape a_strides = ContiguousStrides(a_sizes);
  const Shape b_strides = ContiguousStrides(b_sizes);
  int64_t a_first = 0;
  int64_t b_first = 0;
  for (size_t d = 0; d < a_sizes.size(); ++d) {
    a_first += a_box.offsets[d] * a_strides[d];
    b_first += b_box.offsets[d] * b_strides[d];
  }
  Shape at(static_cast<size_t>(run_dim), 0);
  while (true) {
    int64_t a = a_first;
    int64_t b = b_first;
    for (size_t d = 0; d < at.size(); ++d) {
      a += at[d] * a_strides[d];
      b += at[d] * b_strides[d];
    }
    run(a, b, count);
    int d = run_dim - 1;
    while (d >= 0 && ++at[static_cast<size_t>(d)] ==
                         a_box.sizes[static_cast<size_t>(d)]) {
      at[static_cast<size_t>(d--)] = 0;
    }
    if (d < 0) return;
  }
}

absl::Status ForEachBlock(const Box& box, int64_t element_bytes,
                          int64_t most_bytes,
                          absl::FunctionRef<absl::Status(const Box&)> visit) {
  // Dims from `whole` on fit into a block entirely.
  auto whole = static_cast<size_t>(box.ndim());
  int64_t inner = element_bytes;
  while (whole > 0 && inner * box.sizes[whole - 1] <= most_bytes) {
    inner *= box.sizes[--whole];
  }
  if (whole == 0 || box.empty()) return visit(box);
  // Dim `few` has several indices per block, the dims before it one.
  const size_t few = whole - 1;
  const auto end = [&](size_t d) { return box.offsets[d] + box.sizes[d]; };
  Box block = box;
  for (size_t d = 0; d < few; ++d) block.sizes[d] = 1;
  while (true) {
    block.sizes[few] = std::min(std::max<int64_t>(1, most_bytes / inner),
                                end(few) - block.offsets[few]);
    CH_RETURN_IF_ERROR(visit(block));
    block.offsets[few] += block.sizes[few];
    for (size_t d = few; block.offsets[d] == end(d); --d) {
      if (d == 0) return absl::OkStatus();
      block.offsets[d] = box.offsets[d];
      ++block.offsets[d - 1];
    }
  }
}

}  // namespace crosshatch::checkpoint
