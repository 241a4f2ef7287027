// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/param_state.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using S = ParamState;

const std::vector<S>& States() {
  static const std::vector<S> states = {S::kSharded, S::kShardedPostForward,
                                        S::kUnsharding, S::kUnsharded};
  return states;
}

TEST(ParamStateTest, AllowsTheTransitionsOfTheDiagram) {
  // Row: from; column: to, in the order of States().
  const std::vector<std::vector<bool>> drawn = {
      /* sharded              */ {false, false, true, false},
      /* sharded post-forward */ {true, false, true, false},
      /* unsharding           */ {false, false, false, true},
      /* unsharded            */ {true, true, false, false},
  };
  for (size_t from = 0; from < drawn.size(); ++from) {
    for (size_t to = 0; to < drawn.size(); ++to) {
      EXPECT_EQ(IsLegal(States()[from], States()[to]), drawn[from][to])
          << Name(States()[from]) << " -> " << Name(States()[to]);
    }
  }
}

TEST(ParamStateDeathTest, StopsAtEveryOther) {
  for (const S from : States()) {
    for (const S to : States()) {
      if (IsLegal(from, to)) {
        EXPECT_EQ(Transition("blocks.0", from, to), to);
      } else {
        EXPECT_DEATH(Transition("blocks.0", from, to),
                     std::string("FSDP group blocks.0: ") + Name(from) +
                         " -> " + Name(to));
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
