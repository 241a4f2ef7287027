// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains a Llama-style language model on a mesh of ranks; see --help.

#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_options.h"

namespace crosshatch::examples {
namespace {

absl::Status Main(int argc, char** argv) {
  CH_ASSIGN_OR_RETURN(TrainOptions options, ParseTrainOptions(argc, argv));
  CH_ASSIGN_OR_RETURN(const TokenSource tokens,
                      options.tokens.empty()
                          ? TokenSource::FromText(options.text)
                          : TokenSource::FromTokenFile(options.tokens));
  if (!options.model_dir.empty()) {
    CH_ASSIGN_OR_RETURN(options.config,
                        checkpoint::LoadConfig(options.model_dir));
  }
  CH_RETURN_IF_ERROR(CheckTraining(options, tokens));
  const auto train = [&](World& world) {
    return Train(world, options, tokens);
  };
  switch (options.backend) {
    case Backend::kLocal:
      return RunLocal(options.world_size(), train,
                      {.timeout = options.timeout});
    case Backend::kFake:
      return RunFake(
          {.world_size = options.world_size(), .rank = options.fake_rank},
          train);
  }
  return absl::InternalError("no such backend");
}

}  // namespace
}  // namespace crosshatch::examples

int main(int argc, char** argv) {
  const absl::Status status = crosshatch::examples::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_lm: %s\n", std::string(status.message()).c_str());
  return 1;
}
