// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/param_state.h"

#include "crosshatch/base/check.h"

namespace crosshatch::fsdp {

const char* Name(ParamState state) {
  switch (state) {
    case ParamState::kSharded:
      return "sharded";
    case ParamState::kShardedPostForward:
      return "sharded post-forward";
    case ParamState::kUnsharding:
      return "unsharding";
    case ParamState::kUnsharded:
      return "unsharded";
  }
  return "?";
}

bool IsLegal(ParamState from, ParamState to) {
  using S = ParamState;
  switch (from) {
    case S::kSharded:
      return to == S::kUnsharding;
    case S::kShardedPostForward:
      return to == S::kUnsharding || to == S::kSharded;
    case S::kUnsharding:
      return to == S::kUnsharded;
    case S::kUnsharded:
      return to == S::kSharded || to == S::kShardedPostForward;
  }
  return false;
}

ParamState Transition(const std::string& group, ParamState from,
                      ParamState to) {
  CH_CHECK(IsLegal(from, to))
      << "FSDP group " << group << ": " << Name(from) << " -> " << Name(to);
  return to;
}

}  // namespace crosshatch::fsdp
