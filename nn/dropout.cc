// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/dropout.h"

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {

Dropout::Dropout(double p) : p_(p) {
  CH_CHECK(p >= 0 && p <= 1) << "Dropout with p = " << p;
}

void Dropout::SetStep(uint64_t seed, uint64_t step) {
  draw_ = Draw{RandomKeyOf(seed, FullName()), step};
}

TensorList Dropout::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "dropout";
  if (!Captured(training_) || p_ == 0) return {inputs[0]};
  CH_CHECK(draw_.has_value())
      << "Dropout \"" << FullName() << "\" does not know which step it is; "
      << "SetDropoutStep (nn/dropout.h) says it";
  const Draw draw = Captured(*draw_);
  return {crosshatch::Dropout(inputs[0], p_, draw.key, draw.step)};
}

void SetDropoutTraining(Module& root, bool training) {
  for (const NamedModule& named : root.NamedModules()) {
    auto* dropout = dynamic_cast<Dropout*>(named.module);
    if (dropout != nullptr) dropout->set_training(training);
  }
}

void SetDropoutStep(Module& root, uint64_t seed, uint64_t step) {
  for (const NamedModule& named : root.NamedModules()) {
    auto* dropout = dynamic_cast<Dropout*>(named.module);
    if (dropout != nullptr) dropout->SetStep(seed, step);
  }
}

}  // namespace crosshatch::nn
