// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PARAM_STATE_H_
#define CROSSHATCH_FSDP_PARAM_STATE_H_

/// \file
/// ParamState: where the parameters of a group are, and the legal transitions.
/// docs/fsdp.md shows them.

#include <cstdint>
#include <string>

namespace crosshatch::fsdp {

/// Where the parameters of a group are.
enum class ParamState : uint8_t {
  kSharded,             ///< Only the shards exist.
  kShardedPostForward,  ///< Also sharded over the post-forward mesh.
  kUnsharding,          ///< The all-gather is issued; compute has not waited.
  kUnsharded,           ///< Compute may use the unsharded parameters.
};
/// Returns "sharded", "sharded post-forward", "unsharding" or "unsharded".
const char* Name(ParamState state);

/// Returns whether a group may change from `from` to `to`.
bool IsLegal(ParamState from, ParamState to);

/// Checks and returns the new state of a group. All changes of state use it.
/// \returns `to`
/// \pre IsLegal(from, to). The check names `group` and both states.
ParamState Transition(const std::string& group, ParamState from, ParamState to);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PARAM_STATE_H_
