// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SUMMON_H_
#define CROSSHATCH_FSDP_SUMMON_H_

/// \file
/// SummonFullParameters: the whole parameters of a sharded module, outside of
/// forward and backward: to look at them, to change them, to write them out.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

struct FsdpLife;

struct SummonOptions {
  /// Also those of the modules below, not just the module's own group.
  bool recurse = true;
  /// At the end each rank takes its shards from what it holds of the full
  /// parameters (and gradients). Ranks that change them change them alike.
  bool writeback = true;
  /// Ranks other than the first of a parameter's root mesh keep no memory of
  /// it. Not with writeback.
  bool rank0_only = false;
  /// In host memory.
  bool offload_to_cpu = false;
  bool with_grads = false;
};

/// The scope. All ranks that hold a part of the parameters begin and end it
/// together. While it lasts no sharded module that gathers one of them must run
/// (checked): of a part of a sharded module, that is the whole.
class SummonFullParameters {
 public:
  struct Entry {
    std::shared_ptr<nn::Parameter> parameter;
    std::string name;  ///< From the module.
    /// Plain tensors of the global sizes, owned by this scope. Undefined on
    /// ranks that keep none; `grad` also where there is no gradient.
    Tensor full;
    Tensor grad;
  };

  /// Gathers, one parameter after the other.
  /// \error kFailedPrecondition, naming it, for a group that is gathered or has
  ///     gradients pending (within an iteration), for one that is summoned
  ///     already, and for a parameter without memory; kInvalidArgument for
  ///     rank0_only with writeback; the rank's first error.
  static absl::StatusOr<std::unique_ptr<SummonFullParameters>> Begin(
      nn::Module& module, const SummonOptions& options = {});

  /// Ends the scope as End does, whose error poisons the rank.
  ~SummonFullParameters();
  SummonFullParameters(const SummonFullParameters&) = delete;
  SummonFullParameters& operator=(const SummonFullParameters&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }
  /// Finds an entry by its name; null if there is none.
  const Entry* Find(absl::string_view name) const;

  /// Writes back and drops the full parameters. The second time nothing.
  /// \error the rank's first error.
  absl::Status End();

 private:
  explicit SummonFullParameters(const SummonOptions& options)
      : options_(options) {}

  const SummonOptions options_;
  std::vector<std::shared_ptr<const FsdpLife>> states_;
  std::vector<Entry> entries_;
  bool ended_ = false;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SUMMON_H_
