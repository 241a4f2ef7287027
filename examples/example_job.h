// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_EXAMPLE_JOB_H_
#define CROSSHATCH_EXAMPLES_EXAMPLE_JOB_H_

/// \file
/// What the examples of models (gpt2.cc, vit.cc, moe.cc) have in common, so
/// that each is a model, how it is spread, and its loss.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::examples {

/// `main` of an example: runs `train` on rank threads, on the mesh that `mesh`
/// names as AXIS:SIZE,..., "fsdp:2,tp:2" say. Axes are those of `axes`, in that
/// order, and have one rank where they are not named: what `train` says holds
/// on one rank as on many. Prints what went wrong.
/// \returns the process' exit status.
int RunExample(const std::string& mesh, const std::vector<std::string>& axes,
               absl::FunctionRef<absl::Status(const DeviceMesh&)> train);

/// Trains `model`, which has its values, by a few steps of AdamW, and prints
/// loss and gradient norm of each on rank 0.
/// \param data over whose ranks the batch is split.
/// \param loss_of returns this rank's loss of a step; the mean over the ranks
///     of `data` is the batch's.
absl::Status TrainSomeSteps(
    nn::Module& model, const DeviceMesh& data,
    absl::FunctionRef<absl::StatusOr<Tensor>(int64_t step)> loss_of);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_EXAMPLE_JOB_H_
