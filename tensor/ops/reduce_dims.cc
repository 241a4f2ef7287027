// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/reduce_dims.h"

#include <algorithm>
#include <cstddef>

#include "crosshatch/base/check.h"

namespace crosshatch::internal {

Shape NormalizeDims(ShapeView dims, const Tensor& a, const char* op) {
  Shape result;
  if (dims.empty()) {
    for (int d = 0; d < a.ndim(); ++d) result.push_back(d);
    return result;
  }
  for (int64_t dim : dims) result.push_back(NormalizeDim(dim, a.ndim(), op));
  std::sort(result.begin(), result.end());
  CH_CHECK(std::adjacent_find(result.begin(), result.end()) == result.end())
      << op << " of " << a.Describe() << " over " << ToString(dims)
      << ": a dim twice";
  return result;
}

Shape KeptSizes(ShapeView sizes, ShapeView dims) {
  Shape kept(sizes.begin(), sizes.end());
  for (int64_t dim : dims) kept[static_cast<size_t>(dim)] = 1;
  return kept;
}

Shape DroppedSizes(ShapeView sizes, ShapeView dims) {
  Shape dropped;
  size_t next = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (next < dims.size() && dims[next] == static_cast<int64_t>(d)) {
      ++next;
    } else {
      dropped.push_back(sizes[d]);
    }
  }
  return dropped;
}

int64_t NumReduced(ShapeView sizes, ShapeView dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= sizes[static_cast<size_t>(dim)];
  return count;
}

}  // namespace crosshatch::internal
