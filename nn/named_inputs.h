// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_NAMED_INPUTS_H_
#define CROSSHATCH_NN_NAMED_INPUTS_H_

/// \file
/// Names of a module's inputs. Module::Call takes inputs by position; a module
/// that has several may name them, for whoever speaks of them from outside
/// (tp::PrepareModuleInput).

#include <string>
#include <vector>

namespace crosshatch::nn {

/// Base, beside Module, of a module that names its inputs:
///
///     class CrossAttention final : public nn::Module, public nn::NamedInputs {
///       std::vector<std::string> input_names() const override {
///         return {"x", "memory"};
///       }
class NamedInputs {
 public:
  virtual ~NamedInputs() = default;
  /// In the order in which Module::Call takes them.
  virtual std::vector<std::string> input_names() const = 0;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_NAMED_INPUTS_H_
