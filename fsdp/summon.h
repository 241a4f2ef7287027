// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SUMMON_H_
#define CROSSHATCH_FSDP_SUMMON_H_

/// \file
/// SummonFullParameters: access to the whole parameters of a sharded module
/// outside of forward and backward, to read, change or export them.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

struct FsdpStateRef;

/// Options of SummonFullParameters.
struct SummonOptions {
  /// Whether to include the modules below, not just the module's own groups.
  bool recurse = true;
  /// Whether each rank writes its shards back from its copy of the full
  /// parameters (and gradients) at the end. Ranks that change the copies must
  /// change them alike.
  bool writeback = true;
  /// Whether only the first rank of a parameter's root mesh keeps a copy.
  /// Requires writeback = false.
  bool rank0_only = false;
  /// Whether the copies are in host memory.
  bool offload_to_cpu = false;
  /// Whether to gather gradients too.
  bool with_grads = false;
};

/// A scope in which whole parameters are available. All ranks that hold a part
/// of the parameters must begin and end it together. During the scope, no
/// sharded module that gathers one of the parameters may run (checked). For a
/// part of a sharded module, that is the whole sharded module.
class SummonFullParameters {
 public:
  /// A summoned parameter.
  struct Entry {
    std::shared_ptr<nn::Parameter> parameter;
    std::string name;  ///< Relative to the module.
    /// Plain tensors of the global shape, owned by the scope. Undefined on
    /// ranks that keep none; `grad` also if there is no gradient.
    Tensor full;
    Tensor grad;
  };

  /// Begins a scope and gathers the parameters one by one.
  /// \error kFailedPrecondition naming a group that is gathered, has pending
  ///     gradients or is summoned already, or a parameter without memory.
  /// \error kInvalidArgument for rank0_only with writeback.
  /// \error The rank's first error.
  static absl::StatusOr<std::unique_ptr<SummonFullParameters>> Begin(
      nn::Module& module, const SummonOptions& options = {});

  /// Calls End. Its error poisons the rank.
  ~SummonFullParameters();
  SummonFullParameters(const SummonFullParameters&) = delete;
  SummonFullParameters& operator=(const SummonFullParameters&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }
  /// Returns the entry of a parameter by its name; null if there is none.
  const Entry* Find(absl::string_view name) const;

  /// Writes back and frees the full parameters. A second call has no effect.
  /// \error the rank's first error.
  absl::Status End();

 private:
  explicit SummonFullParameters(const SummonOptions& options)
      : options_(options) {}

  const SummonOptions options_;
  std::vector<std::shared_ptr<const FsdpStateRef>> states_;
  std::vector<Entry> entries_;
  bool ended_ = false;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SUMMON_H_
