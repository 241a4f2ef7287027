// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/parameter.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"

namespace crosshatch::nn {

Parameter::Parameter(ShapeView sizes, DType dtype, Initializer initializer)
    : initializer_(initializer),
      data_(Deferred(sizes, dtype, kNotMaterialized)) {
  data_.set_requires_grad(true);
}

void Parameter::set_data(Tensor data) {
  CH_CHECK(data.sizes() == data_.sizes())
      << "parameter " << name_ << " " << data_.Describe() << " replaced by "
      << data.Describe();
  data_ = std::move(data);
  data_.set_requires_grad(requires_grad_);
}

void Parameter::set_requires_grad(bool requires_grad) {
  requires_grad_ = requires_grad;
  data_.set_requires_grad(requires_grad);
}

}  // namespace crosshatch::nn
