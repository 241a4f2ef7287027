// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SETTINGS_H_
#define CROSSHATCH_FSDP_SETTINGS_H_

/// \file
/// Settings: what a program may change of a sharded module between iterations
/// (ShardedModule).

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace crosshatch::fsdp {

struct FsdpLife;

struct Settings {
  /// Sharded modules, which may be gone by the time they are asked for.
  using Modules = std::vector<std::shared_ptr<const FsdpLife>>;

  /// \name They concern the module and all its groups.
  /// @{
  /// Unset: yes, but for the root.
  std::optional<bool> reshard_after_forward;
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;
  /// Off: gradients stay unsharded and add up; the next reduction takes all.
  bool requires_gradient_sync = true;
  /// Off, on a mesh with replicas: sums stay within the sharding ranks and add
  /// up; the next reduction takes all.
  bool requires_all_reduce = true;
  /// On: parameters without a gradient take part with zeros and get what the
  /// other ranks give, even if this rank has no gradient of the whole group.
  bool reduce_unused = false;
  /// What sums over ranks are divided by. Unset: by the number of the group's
  /// ranks.
  std::optional<double> gradient_divide_factor;
  bool force_sum_reduction = false;
  /// What is gathered ahead when the module runs. Unset: what is expected next.
  std::optional<Modules> forward_prefetch_modules;
  std::optional<Modules> backward_prefetch_modules;
  /// @}

  /// \name They concern a whole tree: those of its root count.
  /// @{
  int forward_prefetch = 1;
  int backward_prefetch = 1;
  std::optional<int64_t> prefetch_bytes;
  /// Off for all backwards of an iteration but the last: compute then does not
  /// wait for reductions, and the order of forward is kept.
  bool is_last_backward = true;
  /// On: no backward reduces anything by itself.
  bool manual_finalization = false;
  /// @}
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SETTINGS_H_
