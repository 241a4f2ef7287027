// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/parameter.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Memory that nothing classified was computed by the program.
void Classify(const Tensor& tensor, MemoryClass memory_class) {
  if (!tensor.defined()) return;
  const Tensor local = LocalTensor(tensor);
  if (!local.storage()->attached()) return;
  Block& block = local.storage()->block();
  if (block.memory_class() != MemoryClass::kActivation) return;
  RankContext& context = RankContext::Current();
  context.allocator().Reclassify(block, memory_class);
}

}  // namespace

Parameter::Parameter(ShapeView sizes, DType dtype, Initializer initializer,
                     bool requires_grad)
    : initializer_(std::move(initializer)),
      requires_grad_(requires_grad),
      data_(Deferred(sizes, dtype, kNotMaterialized)) {
  data_.set_requires_grad(requires_grad);
}

void Parameter::set_initializer(Initializer initializer) {
  CH_CHECK(!has_memory()) << "an initializer for parameter " << name_ << " "
                          << data_.Describe()
                          << ", which has its values already: set it before "
                          << "Materialize, or write to data()";
  initializer_ = std::move(initializer);
}

void Parameter::set_dtype(DType dtype) {
  CH_CHECK(IsFloatingPoint(dtype) && IsFloatingPoint(data_.dtype()))
      << "parameter " << name_ << " " << data_.Describe() << " as " << dtype
      << ": both are to be floating point";
  CH_CHECK(!data_.is_distributed() && !has_memory())
      << "parameter " << name_ << " " << data_.Describe() << " as " << dtype
      << ": set the dtype before it is materialized, and before "
      << "ParallelizeModule and FullyShard";
  data_ = Deferred(data_.sizes(), dtype, kNotMaterialized);
  data_.set_requires_grad(requires_grad_);
}

void Parameter::set_data(Tensor data) {
  CH_CHECK(data.sizes() == data_.sizes())
      << "parameter " << name_ << " " << data_.Describe() << " replaced by "
      << data.Describe();
  Classify(data, MemoryClass::kParameter);
  data_ = std::move(data);
  data_.set_requires_grad(requires_grad_);
}

void Parameter::set_grad(Tensor grad) {
  Classify(grad, MemoryClass::kGradient);
  data_.set_grad(std::move(grad));
}

void Parameter::set_requires_grad(bool requires_grad) {
  requires_grad_ = requires_grad;
  data_.set_requires_grad(requires_grad);
}

bool Parameter::has_memory() const {
  return data_.is_distributed() ? data_.handler()->memory().attached()
                                : data_.storage()->attached();
}

Buffer::Buffer(ShapeView sizes, DType dtype, Initializer initializer,
               bool persistent)
    : Parameter(sizes, dtype, std::move(initializer),
                /*requires_grad=*/false),
      persistent_(persistent) {}

}  // namespace crosshatch::nn
