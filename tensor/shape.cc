// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

Shape ContiguousStrides(ShapeView sizes) {
  Shape strides(sizes.size());
  int64_t* const out = strides.data();
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    out[i] = stride;
    // In a tensor without elements, strides are those of its other dims.
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

bool IsContiguous(ShapeView sizes, ShapeView strides) {
  int64_t stride = 1;
  bool dense = true;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != stride) dense = false;
    stride *= sizes[i];
  }
  return dense;
}

bool Repeats(ShapeView sizes, ShapeView strides) {
  if (NumElements(sizes) == 0) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] == 0) return true;
  }
  return false;
}

int NormalizeDim(int64_t dim, int ndim, const char* op) {
  CH_CHECK(dim >= -ndim && dim < ndim)
      << op << ": dim " << dim << " of a tensor of " << ndim << " dims";
  return static_cast<int>(dim < 0 ? dim + ndim : dim);
}

Shape BroadcastShapes(ShapeView a, ShapeView b, const char* op) {
  const ShapeView longer = a.size() >= b.size() ? a : b;
  const ShapeView shorter = a.size() >= b.size() ? b : a;
  Shape result(longer.begin(), longer.end());
  const size_t added = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& size = result[added + i];
    if (size == 1) size = shorter[i];
    CH_CHECK(size == shorter[i] || shorter[i] == 1)
        << op << ": shapes " << ToString(a) << " and " << ToString(b)
        << " do not broadcast";
  }
  return result;
}

std::string ToString(ShapeView sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

}  // namespace crosshatch
