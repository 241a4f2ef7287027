// SPDX-License-Identifier: Apache-2.0

// Tensor::operator[], by the ops of view.h.

#include <initializer_list>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

Tensor Tensor::operator[](const DimIndex& index) const {
  return (*this)[std::initializer_list<DimIndex>{index}];
}

Tensor Tensor::operator[](std::initializer_list<DimIndex> indices) const {
  CH_CHECK(defined()) << "[] of an undefined tensor";
  CH_CHECK_LE(static_cast<int>(indices.size()), ndim())
      << indices.size() << " indices of " << Describe();
  Tensor result = *this;
  int64_t dim = 0;
  for (const DimIndex& index : indices) {
    if (index.takes_one()) {
      result = Select(result, dim, index.element());
    } else {
      result = Slice(result, dim, index.range().start, index.range().end);
      ++dim;
    }
  }
  return result;
}

}  // namespace crosshatch
