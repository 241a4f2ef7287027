// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/agreed_options.h"

#include <string>

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

std::string Compare(const RunOptions& mine, const RunOptions& of_first) {
  const absl::Status status =
      CheckAgreed(AgreedText(mine), AgreedText(of_first));
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(AgreedOptionsTest, NamesWhatDiffersAndOnlyThat) {
  EXPECT_EQ(Compare({}, {}), "");
  EXPECT_EQ(Compare({.timeout = absl::Seconds(1), .log_prefix = true}, {}), "");
  EXPECT_EQ(Compare({.nccl = {.deterministic = true}}, {}),
            "it runs with --device=cpu --deterministic, and rank 0 with "
            "--device=cpu: start all ranks with the same");
  EXPECT_EQ(Compare({.agreed = {"--lr=0.1", "--steps=3", "no --model"}},
                    {.agreed = {"--lr=0.2", "--steps=3", "a --model"}}),
            "it runs with --lr=0.1 no --model, and rank 0 with --lr=0.2 a "
            "--model: start all ranks with the same");
}

TEST(AgreedOptionsTest, LinesOfAValueAreNoOptions) {
  EXPECT_EQ(Compare({.agreed = {"--prompt=a\nb", "--seed=1"}},
                    {.agreed = {"--prompt=a", "--seed=1"}}),
            "it runs with --prompt=a\\nb, and rank 0 with --prompt=a: start "
            "all ranks with the same");
  EXPECT_EQ(Compare({.agreed = {"a\nb"}}, {.agreed = {"a", "b"}}),
            "it runs with a\\nb nothing more, and rank 0 with a b: start all "
            "ranks with the same");
}

}  // namespace
}  // namespace crosshatch
