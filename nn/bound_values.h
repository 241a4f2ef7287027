// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_BOUND_VALUES_H_
#define CROSSHATCH_NN_BOUND_VALUES_H_

/// \file
/// A program's own variables as a state: the step that it is at, where it reads
/// its data, a seed.
///
///     int64_t step = 0;
///     int64_t position = 0;
///     ch::nn::BoundValues data({{"step", &step}, {"position", &position}});

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

/// The variables are the same on every rank and outlive this.
class BoundValues final : public Stateful {
 public:
  using Variable = std::variant<int64_t*, double*, std::string*>;

  explicit BoundValues(std::vector<std::pair<std::string, Variable>> variables,
                       const RestoreOptions& options = {})
      : variables_(std::move(variables)), options_(options) {}

  /// \error kAlreadyExists for a name that is there twice.
  absl::StatusOr<StateDict> State() override;
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;

 private:
  const std::vector<std::pair<std::string, Variable>> variables_;
  const RestoreOptions options_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_BOUND_VALUES_H_
