// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PARAM_STATE_H_
#define CROSSHATCH_FSDP_PARAM_STATE_H_

/// \file
/// ParamState: where the parameters of a group are, and how they get from one
/// place to another. docs/fsdp.md draws it.

#include <cstdint>
#include <string>

namespace crosshatch::fsdp {

enum class ParamState : uint8_t {
  kSharded,             ///< Nothing but the shards.
  kShardedPostForward,  ///< Spread over the post-forward mesh as well.
  kUnsharding,          ///< The all-gather is issued; compute has not waited.
  kUnsharded,           ///< Compute may use the unsharded parameters.
};
const char* Name(ParamState state);

/// Whether a group may go from one to the other.
bool IsLegal(ParamState from, ParamState to);

/// The one way to change a state.
/// \returns `to`
/// \pre IsLegal(from, to), checked, naming `group` and both
ParamState Transition(const std::string& group, ParamState from, ParamState to);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PARAM_STATE_H_
