// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_
#define CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_

/// \file
/// DescribedState: a state without its elements, which ranks compare before
/// they save or load.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::checkpoint {

/// The tensors and values of a state.
struct DescribedState {
  /// Sorted by name, like `data`.
  std::vector<TensorSpec> tensors;
  std::vector<Tensor> data;
  std::map<std::string, SmallValue> values;

  /// Returns one line per tensor and value; equal for equal states.
  std::string ToString() const;
};

/// Returns the description of `state`.
/// \error kInvalidArgument naming an entry that is an undefined or Partial
///     tensor.
absl::StatusOr<DescribedState> Describe(const nn::StateDict& state);

/// Compares `described` between all ranks of `comm` and returns it. All of them
/// must call it. An error of one rank is an error of all.
///
/// Ranks may differ in the ranks of their meshes, if each slice of a mesh has a
/// tensor of its own. Tensors of one name on all slices are then taken for
/// copies of one tensor, on a mesh of all their ranks.
/// \param label names the exchanges in errors.
/// \param with_values whether to compare the small values too.
/// \error kFailedPrecondition with the first line that differs, on two ranks,
///     or if meshes share some of their ranks.
absl::StatusOr<DescribedState> Agree(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<DescribedState>& described, bool with_values);

/// Returns e.g. "a, b, c and 7 more".
std::string ListNames(absl::Span<const std::string> names);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_
