// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains the models of tests/conformance/llama on every mesh.

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "crosshatch/tests/llama_case_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class LlamaMeshTest
    : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(LlamaMeshTest, TrainsAsTheReferenceDoes) {
  const auto& [model, mesh] = GetParam();
  ExpectTrainsAsTheReferenceDoes(model, mesh);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, LlamaMeshTest,
    ::testing::Combine(::testing::Values("gqa", "tied"),
                       ::testing::Values("fsdp:1", "fsdp:2", "fsdp:3", "tp:2",
                                         "tp:3", "tp:4", "tp:6", "fsdp:2,tp:2",
                                         "replicate:2,fsdp:2", "fsdp:2,tp:3")),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param), "_",
                          absl::StrReplaceAll(std::get<1>(info.param),
                                              {{":", ""}, {",", "_"}}));
    });

}  // namespace
}  // namespace crosshatch
