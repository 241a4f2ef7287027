// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains a small GPT-2 on a mesh, from new weights or those of a Hugging Face
/// directory, and writes such a directory.
///
///     gpt2 [MESH [FROM [TO]]]         e.g. fsdp:2,tp:2
///
/// FROM is a directory with a model of the sizes of Gpt2Config; empty: new
/// weights.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/example_job.h"
#include "crosshatch/examples/gpt2_model.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/tensor/creation.h"

namespace ch = crosshatch;
using ch::Tensor;

namespace {

constexpr int64_t kRows = 5;  // Of a batch; not divisible by any mesh.

absl::Status Train(const ch::DeviceMesh& mesh, const std::string& from,
                   const std::string& to) {
  const ch::examples::Gpt2Config config;
  ch::examples::Gpt2 model(config);
  CH_RETURN_IF_ERROR(ch::examples::ParallelizeGpt2(model, mesh));
  const ch::checkpoint::WeightNames names = ch::examples::Gpt2Names();
  if (from.empty()) {
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  } else {
    CH_RETURN_IF_ERROR(ch::checkpoint::LoadWeights(model, from, names));
  }

  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, mesh.Slice("fsdp"));
  const ch::Interval rows = ch::RowsOf(data, kRows);
  const int64_t length = config.positions;
  CH_RETURN_IF_ERROR(ch::examples::TrainSomeSteps(
      model, data, [&](int64_t step) -> absl::StatusOr<Tensor> {
        std::vector<int32_t> tokens;
        std::vector<int32_t> targets;
        for (int64_t i = rows.begin * length; i < rows.end * length; ++i) {
          const int64_t at = step * kRows * length + i;
          tokens.push_back(static_cast<int32_t>(at * 5 % config.vocab));
          targets.push_back(static_cast<int32_t>((at + 1) * 5 % config.vocab));
        }
        const ch::Shape sizes = {rows.size(), length};
        return ch::nn::CrossEntropyLoss(
            model.Forward(ch::FromValues<int32_t>(sizes, tokens)),
            ch::FromValues<int32_t>(sizes, targets), {.mean_over = data});
      }));
  if (to.empty()) return absl::OkStatus();
  return ch::checkpoint::SaveWeights(mesh.world(), model, to, names,
                                     ch::examples::Gpt2ConfigText(config));
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i) {
    return std::string(argc > i ? argv[i] : "");
  };
  return ch::examples::RunExample(
      argument(1), {"fsdp", "tp"}, [&](const ch::DeviceMesh& mesh) {
        return Train(mesh, argument(2), argument(3));
      });
}
