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

/// Whether all ranks describe alike; an error of one rank is one of all.
/// \param label names the meetings in errors
/// \error kFailedPrecondition with the first line that differs, on two ranks
absl::Status Agree(Communicator& comm, const std::string& label,
                   const absl::StatusOr<std::string>& description);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_DESCRIBED_STATE_H_
