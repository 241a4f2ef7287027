// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_EXAMPLE_JOB_H_
#define CROSSHATCH_EXAMPLES_EXAMPLE_JOB_H_

/// \file
/// Common code of the model examples (gpt2.cc, vit.cc, moe.cc), so that each
/// contains only a model, its sharding and its loss.

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

/// Implements `main` of an example: runs `train` on rank threads and prints
/// errors.
/// \param mesh axes and sizes as AXIS:SIZE,..., e.g. "fsdp:2,tp:2". After
///     "verify=" the training is not run on this mesh but verified
///     (verify/verify_step.h), and the certificate or the counterexamples are
///     printed.
/// \param axes all axes of the mesh in order. Axes that `mesh` omits have one
///     rank, so `train` works on any number of ranks.
/// \returns the exit status of the process.
int RunExample(const std::string& mesh, const std::vector<std::string>& axes,
               absl::FunctionRef<absl::Status(const DeviceMesh&)> train);

/// Trains `model` with a few steps of AdamW, and prints loss and gradient norm
/// of each on rank 0.
/// \param model has its initial values.
/// \param data the mesh that the batch is split over.
/// \param loss_of returns this rank's loss of a step. The mean over the ranks
///     of `data` is the batch's loss.
absl::Status TrainSomeSteps(
    nn::Module& model, const DeviceMesh& data,
    absl::FunctionRef<absl::StatusOr<Tensor>(int64_t step)> loss_of);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_EXAMPLE_JOB_H_
