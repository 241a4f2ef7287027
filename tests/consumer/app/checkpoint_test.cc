// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_config.h"
#include "gtest/gtest.h"

namespace consumer {
namespace {

// This project compiles its own JSON library.
TEST(CheckpointTest, NamesAMissingDirectory) {
  const absl::StatusOr<crosshatch::nn::LlamaConfig> config =
      crosshatch::checkpoint::LoadConfig("/no/such");
  EXPECT_FALSE(config.ok());
}

}  // namespace
}  // namespace consumer
