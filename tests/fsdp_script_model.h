// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_SCRIPT_MODEL_H_
#define CROSSHATCH_TESTS_FSDP_SCRIPT_MODEL_H_

/// \file
/// The model of an FsdpScript, with small integers.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/recompute.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {

inline constexpr int64_t kScriptDim = 3;

class ScriptPart final : public nn::Module {
 public:
  /// \param parts receives this part and all below, by number
  ScriptPart(const PartSpec& spec, std::vector<ScriptPart*>& parts)
      : spec_(spec) {
    parts.push_back(this);
    if (spec.form == PartSpec::Form::kLinear) {
      if (spec.tied_to < 0) {
        linear_ = std::make_unique<nn::Linear>(
            kScriptDim, kScriptDim, nn::LinearOptions{.bias = spec.bias});
      } else {
        linear_ = std::make_unique<nn::Linear>(
            parts[static_cast<size_t>(spec.tied_to)]->linear_->weight());
      }
      RegisterModule("linear", *linear_);
    }
    if (spec.form == PartSpec::Form::kShift) {
      shift_ = std::make_shared<nn::Parameter>(
          Shape{kScriptDim}, kFloat32,
          nn::Initializer{nn::Initializer::Kind::kZeros});
      RegisterParameter("shift", shift_);
    }
    for (const PartSpec& part : spec.parts) {
      parts_.push_back(std::make_unique<ScriptPart>(part, parts));
      RegisterModule(absl::StrCat(parts_.size() - 1), *parts_.back());
    }
  }
  const char* type_name() const override { return "ScriptPart"; }

  const PartSpec& spec() const { return spec_; }
  nn::Linear* linear() { return linear_.get(); }
  /// Returns whether it has parameters of its own.
  bool has_parameters() const {
    return linear_ != nullptr || shift_ != nullptr;
  }
  /// Sets whether the enclosing part skips it.
  void set_skipped(bool skipped) { skipped_ = skipped; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    if (linear_ != nullptr) x = linear_->Forward(x);
    if (shift_ != nullptr) x = Add(x, ToDType(shift_->Get(), x.dtype()));
    for (int i = 0; i < spec_.repeats; ++i) {
      for (const auto& part : parts_) {
        if (!Captured(part->skipped_)) x = part->Forward(x);
      }
    }
    if (spec_.relu) x = Relu(x);
    if (spec_.form == PartSpec::Form::kResidual) {
      x = Add(inputs[0], ToDType(x, inputs[0].dtype()));
    }
    return {x};
  }

 private:
  const PartSpec spec_;
  std::unique_ptr<nn::Linear> linear_;
  std::shared_ptr<nn::Parameter> shift_;
  std::vector<std::unique_ptr<ScriptPart>> parts_;
  bool skipped_ = false;
};

struct ScriptModel {
  explicit ScriptModel(const PartSpec& spec)
      : root(std::make_unique<ScriptPart>(spec, parts)) {
    int64_t salt = 0;
    for (nn::Parameter* p : root->Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
    for (ScriptPart* part : parts) {
      if (!part->has_parameters() || !part->spec().frozen) continue;
      for (nn::Parameter* p : part->Parameters()) p->set_requires_grad(false);
    }
  }

  std::vector<ScriptPart*> parts;  ///< By number; before root: it fills them.
  std::unique_ptr<ScriptPart> root;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_FSDP_SCRIPT_MODEL_H_
