// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_
#define CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_

/// \file
/// A state without its elements: what ranks compare before they save or load.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::checkpoint {

struct DescribedState {
  /// In the order of names, as `data`.
  std::vector<TensorSpec> tensors;
  std::vector<Tensor> data;
  std::map<std::string, SmallValue> values;

  /// A line for each tensor and value, the same on ranks that have the same.
  std::string ToString() const;
};

/// \error kInvalidArgument naming an entry that is an undefined tensor, or
///     partial.
absl::StatusOr<DescribedState> Describe(const nn::StateDict& state);

/// What all ranks describe alike. They may differ in the ranks of meshes, as
/// where each slice of a mesh has a tensor: what all slices have under a name
/// is taken for one tensor, of which each has a copy, on a mesh of all their
/// ranks. An error of one rank is one of all. \param label names the meetings
/// in errors \param with_values compares those too \error kFailedPrecondition
/// with the first line that differs, on two ranks,
///     and for meshes that have some of their ranks in common
absl::StatusOr<DescribedState> Agree(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<DescribedState>& described, bool with_values);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_
