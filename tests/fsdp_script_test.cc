// SPDX-License-Identifier: Apache-2.0

/// \file
/// Random programs that use FSDP: every mesh has the bits of one rank. They
/// contain the calls of ScriptCall in any order, the options that AllAreDrawn
/// lists, and replicated and tensor-parallel parts. Other tests cover what is
/// not exact or not random: norms and clipping (tests/fsdp_optimizers_test.cc),
/// mistakes (fsdp/tests/fsdp_errors_test.cc), buffers
/// (fsdp/tests/buffers_test.cc), meshes of some of the ranks
/// (fsdp/tests/mesh_of_test.cc). CROSSHATCH_FUZZ_SEED and
/// CROSSHATCH_FUZZ_SCRIPTS set the first seed and the number of programs.

#include "crosshatch/tests/fsdp_script.h"

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::UnorderedElementsAre;

constexpr int kCalls = 40;

TEST(FsdpScriptTest, MatchesOneRank) {
  const unsigned first = FuzzSeed();
  const unsigned count = FuzzCases("CROSSHATCH_FUZZ_SCRIPTS", 75);
  for (unsigned i = 0; i < count; ++i) {
    const uint64_t seed = uint64_t{first} * 100000 + i;
    const FsdpScript script = RandomFsdpScript(seed, kCalls);
    if (FirstDifferenceApart(script).empty()) continue;
    const FsdpScript small = Smallest(script);
    ADD_FAILURE() << "script " << seed << ", as far as it is needed:\n"
                  << ToString(small) << FirstDifferenceApart(small);
  }
}

// Scripts must have effects: losses, changed weights and gradients.
TEST(FsdpScriptTest, ScriptsHaveEffects) {
  int stepped = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FsdpScript script = RandomFsdpScript(seed, kCalls);
    FsdpScript nothing = script;
    nothing.calls.clear();
    const auto seen = RunOnMesh(script);
    const auto at_first = RunOnMesh(nothing);
    ASSERT_TRUE(seen.ok()) << seen.status();
    ASSERT_TRUE(at_first.ok()) << at_first.status();
    // The last observation is the weights.
    const auto& end = seen->front().observations;
    const auto& begin = at_first->front().observations;
    for (size_t i = 1; i <= begin.size(); ++i) {
      if (end[end.size() - i].values == begin[begin.size() - i].values) {
        continue;
      }
      ++stepped;
      break;
    }
  }
  EXPECT_GT(stepped, 12);
}

TEST(FsdpScriptTest, AllAreDrawn) {
  bool kinds[ScriptCall::kNumRandomKinds] = {};
  std::set<std::string> options;
  std::set<std::string> meshes;
  std::set<PartSpec::Split> splits;
  const std::function<void(const PartSpec&)> see = [&](const PartSpec& part) {
    splits.insert(part.split);
    for (const PartSpec& below : part.parts) see(below);
  };
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const FsdpScript script = RandomFsdpScript(seed, kCalls);
    std::string mesh;
    for (const MeshAxis& axis : script.axes) {
      absl::StrAppend(&mesh, mesh.empty() ? "" : ",", axis.name);
    }
    meshes.insert(mesh);
    if (script.tp_ranks() > 1) see(script.model);
    for (const ShardSpec& shard : script.shards) {
      for (const absl::string_view option :
           absl::StrSplit(shard.text, ' ', absl::SkipEmpty())) {
        const std::vector<std::string> name = absl::StrSplit(option, '=');
        options.insert(name[0]);
      }
    }
    for (const ScriptCall& call : script.calls) {
      kinds[static_cast<int>(call.kind)] = true;
    }
  }
  for (const bool drawn : kinds) EXPECT_TRUE(drawn);
  EXPECT_THAT(meshes, UnorderedElementsAre("fsdp", "replicate,fsdp", "fsdp,tp",
                                           "replicate,fsdp,tp"));
  EXPECT_EQ(splits.size(), 3u);
  EXPECT_THAT(options,
              UnorderedElementsAre(
                  "biases", "cast_forward_inputs", "cpu_offload", "force_sum",
                  "divide_factor", "ignores_frozen", "output_dtype",
                  "param_dtype", "post_forward_mesh_size", "prefetch",
                  "prefetch_bytes", "ragged_shard", "reduce_buffers",
                  "reduce_dtype", "replicated", "reshard_after_forward",
                  "shard_dim", "sync_from_first_rank", "vectors_elsewhere"));
}

}  // namespace
}  // namespace crosshatch
