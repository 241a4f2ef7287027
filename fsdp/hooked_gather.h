// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_HOOKED_GATHER_H_
#define CROSSHATCH_FSDP_HOOKED_GATHER_H_

/// \file
/// HookedGather: the all-gather of a group whose parameters have gather hooks.

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "crosshatch/fsdp/gather_hooks.h"
#include "crosshatch/fsdp/group_plan.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch::fsdp {

/// The buffers have elements of dtype() in the layout of plan(): the
/// parameters' own if each has one tensor of its shape and one dtype, else
/// bytes.
class HookedGather {
 public:
  /// \param hooks by parameter of `parameters`
  /// \error kInvalidArgument naming a parameter whose hooks do not keep the
  ///     rules of GatherHooks::Inputs.
  static absl::StatusOr<std::unique_ptr<HookedGather>> Create(
      std::vector<std::shared_ptr<const GatherHooks>> hooks,
      const GroupPlan& parameters);

  DType dtype() const { return dtype_; }
  const GroupPlan& plan() const { return plan_; }
  bool has_post_all_gather() const { return hooks_[0]->has_post_all_gather(); }

  /// Calls BeginForward of all hooks.
  void BeginForward() const;
  /// Calls Prepare of all hooks.
  void Prepare() const;
  /// Writes the inputs of `rank` to its shard buffer `source`.
  /// \param shard_of returns this rank's shard of parameter i.
  void PreAllGather(int rank, absl::FunctionRef<Tensor(int i)> shard_of,
                    const std::shared_ptr<Storage>& source) const;
  /// Returns views of the gathered tensors of parameter i.
  TensorList Gathered(int i, const std::shared_ptr<Storage>& gathered) const;
  TensorList Extras(int i, TensorSpan gathered) const {
    return hooks_[static_cast<size_t>(i)]->Extras(gathered);
  }
  void PostAllGather(int i, const std::shared_ptr<Storage>& gathered,
                     const Tensor& unsharded) const {
    hooks_[static_cast<size_t>(i)]->PostAllGather(Gathered(i, gathered),
                                                  unsharded);
  }

 private:
  HookedGather(std::vector<std::shared_ptr<const GatherHooks>> hooks,
               GroupPlan parameters, GroupPlan plan, DType dtype,
               std::vector<std::vector<int>> indices)
      : hooks_(std::move(hooks)),
        parameters_(std::move(parameters)),
        plan_(std::move(plan)),
        dtype_(dtype),
        indices_(std::move(indices)) {}

  /// Returns a view of input `input` of a piece of parameter i.
  /// \param offset in elements of dtype()
  Tensor ViewOf(const GatherHooks::Input& input, int64_t offset,
                const std::shared_ptr<Storage>& storage) const;

  const std::vector<std::shared_ptr<const GatherHooks>> hooks_;
  const GroupPlan parameters_;
  const GroupPlan plan_;
  const DType dtype_;
  const std::vector<std::vector<int>> indices_;  ///< In plan_: [i][input].
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_HOOKED_GATHER_H_
