// SPDX-License-Identifier: Apache-2.0

/// \file
/// Random programs that use FSDP see on every mesh, to the bit, what they see
/// on one rank: any call in any order, every option. CROSSHATCH_FUZZ_SEED
/// chooses others; CROSSHATCH_FUZZ_SCRIPTS says how many.

#include "crosshatch/tests/fsdp_script.h"

#include <cstdint>

#include "crosshatch/dtensor/redistribution/fuzz_testutil.h"
#include "crosshatch/tests/fsdp_script_run.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int kCalls = 40;

TEST(FsdpScriptTest, AMeshSeesWhatOneRankSees) {
  const unsigned first = FuzzSeed();
  const unsigned count = FuzzCases("CROSSHATCH_FUZZ_SCRIPTS", 150);
  for (unsigned i = 0; i < count; ++i) {
    const uint64_t seed = uint64_t{first} * 100000 + i;
    const FsdpScript script = RandomFsdpScript(seed, kCalls);
    if (FirstDifferenceApart(script).empty()) continue;
    const FsdpScript small = Smallest(script);
    ADD_FAILURE() << "script " << seed << ", as far as it is needed:\n"
                  << ToString(small) << FirstDifferenceApart(small);
  }
}

// A generator whose scripts do nothing would find nothing: they see losses,
// weights that were stepped and gradients, and every kind of call stands in
// some.
TEST(FsdpScriptTest, ScriptsDoWhatTheyAreFor) {
  int stepped = 0;
  bool kinds[ScriptCall::kNumKinds] = {};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FsdpScript script = RandomFsdpScript(seed, kCalls);
    FsdpScript nothing = script;
    nothing.calls.clear();
    const auto seen = RunOnMesh(script);
    const auto at_first = RunOnMesh(nothing);
    ASSERT_TRUE(seen.ok()) << seen.status();
    ASSERT_TRUE(at_first.ok()) << at_first.status();
    // The last to be seen are the weights.
    const auto& end = seen->front().observations;
    const auto& begin = at_first->front().observations;
    for (size_t i = 1; i <= begin.size(); ++i) {
      if (end[end.size() - i].values == begin[begin.size() - i].values) {
        continue;
      }
      ++stepped;
      break;
    }
    for (const ScriptCall& call : script.calls) {
      kinds[static_cast<int>(call.kind)] = true;
    }
  }
  EXPECT_GT(stepped, 15);
  for (const bool drawn : kinds) EXPECT_TRUE(drawn);
}

}  // namespace
}  // namespace crosshatch
