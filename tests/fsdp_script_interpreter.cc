// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/accumulate.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/summon.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tests/fsdp_script.h"
#include "crosshatch/tests/fsdp_script_runner.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch {
namespace {

using Kind = ScriptCall::Kind;
using fsdp::ShardedModule;

class Interpreter final : public ScriptRunner {
 public:
  Interpreter(const FsdpScript& script, World& world, ScriptResult& result)
      : ScriptRunner(script), world_(world), result_(result) {}

  absl::Status Shard() {
    CH_ASSIGN_OR_RETURN(mesh_, InitDeviceMesh(world_, script().axes));
    for (ScriptPart* part : model().parts) {
      if (!part->spec().checkpointed) continue;
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(*part));
    }
    std::vector<std::string> data_axes;
    for (const MeshAxis& axis : script().axes) {
      if (axis.name != "tp") data_axes.push_back(axis.name);
    }
    CH_ASSIGN_OR_RETURN(data_mesh_, mesh_->Slice(data_axes));
    if (data_axes.back() == "cp") {  // FSDP joins dp and cp to one axis.
      CH_ASSIGN_OR_RETURN(data_mesh_, data_mesh_->Flatten(data_axes, "joined"));
    }
    if (script().tp_ranks() > 1) CH_RETURN_IF_ERROR(Split());
    for (const ShardSpec& shard : script().shards) {
      std::vector<nn::Module*> modules;
      for (const int part : shard.parts) {
        modules.push_back(model().parts[static_cast<size_t>(part)]);
      }
      fsdp::FullyShardOptions options = shard.options;
      if (shard.ignores_frozen) {
        for (const nn::Parameter* p : model().root->Parameters()) {
          if (!p->requires_grad()) options.ignored_params.push_back(p);
        }
      }
      if (shard.replicated) {
        CH_ASSIGN_OR_RETURN(const DeviceMesh all, InOneAxis());
        CH_RETURN_IF_ERROR(fsdp::Replicate(*modules[0], all, options));
        continue;
      }
      if (shard.vectors_elsewhere) {
        CH_ASSIGN_OR_RETURN(const DeviceMesh other, InAnotherShape());
        options.mesh_of =
            [other](const nn::Parameter& p) -> std::optional<DeviceMesh> {
          if (p.data().ndim() == 1) return other;
          return std::nullopt;
        };
      }
      CH_RETURN_IF_ERROR(fsdp::FullyShard(modules, *data_mesh_, options));
    }
    held_after_sharding_ = Held();
    return absl::OkStatus();
  }

 protected:
  absl::Status Forward(const ForwardCall& forward) override {
    const int part = world_.rank() / script().tp_ranks();
    SkipAs(part);
    const Tensor x =
        BatchOf(part, script().data_ranks(), forward.batch, kScriptDim);
    const GradModeScope mode(forward.grad);
    Tensor loss;
    if (forward.by_run) {
      loss = Of(0).Run({x}, [&](TensorSpan in) -> TensorList {
        return {ScriptLoss(*model().root, in[0])};
      })[0];
    } else {
      loss = ScriptLoss(*model().parts[static_cast<size_t>(forward.part)], x);
    }
    Observe("loss", ToDoubles(loss.Detach()));
    if (forward.grad) losses_.push_back(loss);
    return world_.context().status();
  }

  absl::Status BackwardOf(size_t loss) override {
    const Tensor of = losses_[loss];
    losses_.erase(losses_.begin() + static_cast<ptrdiff_t>(loss));
    return Backward(Mul(of, script().loss_factor));
  }

  absl::Status Accumulate(int batch, bool in_shards) override {
    return fsdp::AccumulateGradients(
        *model().root, 2,
        [&](int64_t i) -> absl::Status {
          CH_RETURN_IF_ERROR(Forward({.batch = batch + static_cast<int>(i)}));
          return BackwardOf(losses_.size() - 1);
        },
        in_shards ? fsdp::AccumulateBy::kShards
                  : fsdp::AccumulateBy::kUnsharded);
  }

  absl::Status ResetIteration() override {
    losses_.clear();
    for (const int root : Trees()) OfShard(root).ResetIteration();
    return absl::OkStatus();
  }

  absl::Status Step(bool arms_event) override {
    fsdp::IntegerDescent(*model().root, script().rounding);
    if (arms_event) ArmEvent();
    return absl::OkStatus();
  }

  void ZeroGrad() override {
    for (nn::Parameter* p : model().root->Parameters()) p->set_grad(Tensor());
  }

  absl::Status Compare() override {
    const NoGrad no_grad;
    for (const nn::NamedParameter& named : model().root->NamedParameters()) {
      const nn::Parameter& p = *named.parameter;
      Observe(named.name, ToDoubles(FullTensor(p.data())));
      std::vector<double> gradient(static_cast<size_t>(p.data().numel()));
      if (p.grad().defined()) gradient = ToDoubles(FullTensor(p.grad()));
      Observe(absl::StrCat("gradient of ", named.name), std::move(gradient));
    }
    return world_.context().Synchronize();
  }

  absl::Status Summon(const ScriptCall& call, bool must_succeed) override {
    const fsdp::SummonOptions options = {
        .recurse = (call.value & 1) != 0,
        .writeback = call.on,
        .rank0_only = !call.on && (call.value & 2) != 0,
        .offload_to_cpu = (call.value & 4) != 0,
        .with_grads = (call.value & 8) != 0};
    auto scope = fsdp::SummonFullParameters::Begin(
        *model().parts[static_cast<size_t>(call.part)], options);
    Summoned& summoned =
        result_.summoned.emplace_back(Summoned{this->call(), !scope.ok(), {}});
    if (!scope.ok()) {
      if (must_succeed || !absl::IsFailedPrecondition(scope.status())) {
        return scope.status();
      }
      return absl::OkStatus();
    }
    const std::vector<nn::Parameter*> all = model().root->Parameters();
    for (const auto& entry : (*scope)->entries()) {
      const auto index = static_cast<size_t>(
          std::find(all.begin(), all.end(), entry.parameter.get()) -
          all.begin());
      summoned.parameters.push_back(static_cast<int>(index));
      if (!entry.full.defined()) continue;
      Observe(absl::StrCat("summoned ", entry.name), ToDoubles(entry.full));
      if (options.with_grads) {
        std::vector<double> gradient(
            static_cast<size_t>(entry.parameter->data().numel()));
        if (entry.grad.defined()) gradient = ToDoubles(entry.grad);
        Observe(absl::StrCat("summoned gradient of ", entry.name),
                std::move(gradient));
      }
      const NoGrad no_grad;
      if (call.on) MulInPlace(entry.full, -1);
    }
    CH_RETURN_IF_ERROR((*scope)->End());
    if (call.on && event_armed()) ArmEvent();
    return absl::OkStatus();
  }

  absl::Status ExpectNoMemory() override {
    if (Held() == held_after_sharding_) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "call ", call(), ": more memory is held than after sharding"));
  }

  absl::Status Finalize() override {
    for (const int root : Trees()) OfShard(root).FinalizeBackward().Wait();
    return world_.context().status();
  }

  absl::Status Tell(const ScriptCall& call) override {
    ShardedModule sharded = Of(call.part);
    const auto configure =
        [&](absl::FunctionRef<void(fsdp::Settings&)> change) {
          return fsdp::Configure(Module(shards().Of(call.part)), change,
                                 call.recurse);
        };
    switch (call.kind) {
      case Kind::kUnshard: {
        fsdp::UnshardHandle handle = sharded.Unshard();
        if (call.on) handle.Wait();
        break;
      }
      case Kind::kReshard:
        sharded.Reshard();
        break;
      case Kind::kSync:
        return configure(
            [&](fsdp::Settings& s) { s.requires_gradient_sync = call.on; });
      case Kind::kAllReduce:
        return configure(
            [&](fsdp::Settings& s) { s.requires_all_reduce = call.on; });
      case Kind::kReshardAfterForward:
        return configure(
            [&](fsdp::Settings& s) { s.reshard_after_forward = call.on; });
      case Kind::kReshardAfterBackward:
        return configure(
            [&](fsdp::Settings& s) { s.reshard_after_backward = call.on; });
      case Kind::kKeepUnsharded:
        return configure(
            [&](fsdp::Settings& s) { s.keep_unsharded = call.on; });
      case Kind::kForceSum:
        return configure(
            [&](fsdp::Settings& s) { s.reduction.force_sum = call.on; });
      case Kind::kCustomComm:
        return configure(
            [&](fsdp::Settings& s) { s.custom_comm = CustomOf(call); });
      case Kind::kReduceUnused:
        return configure(
            [&](fsdp::Settings& s) { s.reduce_unused_params = call.on; });
      case Kind::kLastBackward:
        return ConfigureTrees(
            [&](fsdp::Settings& s) { s.is_last_backward = call.on; });
      case Kind::kManual:
        return ConfigureTrees(
            [&](fsdp::Settings& s) { s.manual_finalization = call.on; });
      case Kind::kDivide:
        return configure([&](fsdp::Settings& s) {
          s.reduction.divide_factor = FactorOf(call);
        });
      case Kind::kUnshardInBackward:
        return fsdp::Configure(
            Module(shards().Of(call.part)),
            [&](fsdp::Settings& s) { s.unshard_in_backward = call.on; },
            /*recurse=*/false);
      case Kind::kPrefetch:
        return SetPrefetch(call);
      default:
        break;
    }
    return absl::OkStatus();
  }

 private:
  // By memory class, on the device and on the host.
  using HeldMemory =
      std::pair<decltype(MemoryStats::current), decltype(MemoryStats::current)>;
  HeldMemory Held() const {
    RankContext& context = world_.context();
    return {context.device_allocator().stats().current,
            context.host_allocator().stats().current};
  }

  void Observe(std::string what, std::vector<double> values) {
    result_.observations.push_back(
        {call(), std::move(what), std::move(values)});
  }

  nn::Module& Module(int shard) {
    return *model().parts[static_cast<size_t>(shards().At(shard).parts[0])];
  }
  ShardedModule OfShard(int shard) { return *ShardedModule::Of(Module(shard)); }
  ShardedModule Of(int part) { return OfShard(shards().Of(part)); }

  std::set<int> Trees() const {
    std::set<int> roots;
    for (int s = 0; s < shards().count(); ++s) roots.insert(shards().TreeOf(s));
    return roots;
  }

  void ArmEvent() {
    const Event event = world_.context().compute_stream().Record();
    for (const int root : Trees()) OfShard(root).SetPostOptimizerEvent(event);
  }

  absl::Status Split() {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh_->Slice("tp"));
    tp::ParallelPlan plan;
    for (ScriptPart* part : model().parts) {
      const PartSpec::Split split = part->spec().split;
      if (split == PartSpec::Split::kWhole) continue;
      plan.push_back(
          {part->linear()->FullName(),
           split == PartSpec::Split::kColumns
               ? tp::ColwiseParallel({.output = crosshatch::Replicate(),
                                      .use_local_output = true})
               : tp::RowwiseParallel({.input = crosshatch::Replicate(),
                                      .use_local_output = true})});
    }
    return tp::ParallelizeModule(*model().root, tp, plan);
  }

  absl::StatusOr<DeviceMesh> InOneAxis() const {
    if (data_mesh_->ndim() == 1) return *data_mesh_;
    return data_mesh_->Flatten({"replicate", "fsdp"}, "all");
  }
  absl::StatusOr<DeviceMesh> InAnotherShape() const {
    if (data_mesh_->ndim() == 2) return InOneAxis();
    const int size = data_mesh_->size();
    const int shards = size % 2 == 0 ? 2 : 1;
    return data_mesh_->Unflatten(
        "fsdp", {{"replicas", size / shards}, {"shards", shards}});
  }

  absl::Status ConfigureTrees(absl::FunctionRef<void(fsdp::Settings&)> change) {
    for (const int root : Trees()) {
      CH_RETURN_IF_ERROR(
          fsdp::Configure(Module(root), change, /*recurse=*/false));
    }
    return absl::OkStatus();
  }

  static std::shared_ptr<const fsdp::CustomComm> CustomOf(
      const ScriptCall& call) {
    if (!call.on) return nullptr;
    auto custom = std::make_shared<fsdp::CustomComm>();
    custom->all_gather = custom->reduce_scatter =
        [](Communicator& communicator, Collective collective, Stream& stream) {
          return communicator.Issue(std::move(collective), stream);
        };
    custom->all_reduce_hook = [](const Tensor& reduced) {
      MulInPlace(reduced, 1);
    };
    return custom;
  }

  absl::Status SetPrefetch(const ScriptCall& call) {
    std::vector<nn::Module*> modules;
    for (int s = 0; s < shards().count(); ++s) {
      if ((call.value >> s & 1) != 0) modules.push_back(&Module(s));
    }
    if (call.recurse) std::reverse(modules.begin(), modules.end());
    return fsdp::Configure(
        Module(shards().Of(call.part)),
        [&](fsdp::Settings& s) {
          (call.on ? s.forward_prefetch_modules : s.backward_prefetch_modules) =
              modules;
        },
        /*recurse=*/false);
  }

  World& world_;
  ScriptResult& result_;
  std::optional<DeviceMesh> mesh_;
  std::optional<DeviceMesh> data_mesh_;  // Without tp.
  std::vector<Tensor> losses_;
  HeldMemory held_after_sharding_;
};

}  // namespace

absl::StatusOr<ScriptResult> RunOnRank(const FsdpScript& script, World& world) {
  ScriptResult result;
  Interpreter runner(script, world, result);
  CH_RETURN_IF_ERROR(runner.Shard());
  CH_RETURN_IF_ERROR(runner.Run());
  CH_RETURN_IF_ERROR(world.context().Synchronize());
  return result;
}

absl::StatusOr<std::vector<ScriptResult>> RunOnMesh(const FsdpScript& script) {
  std::vector<ScriptResult> results(static_cast<size_t>(script.ranks()));
  CH_RETURN_IF_ERROR(StatusOfRanks(
      script.ranks(),
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(results[static_cast<size_t>(world.rank())],
                            RunOnRank(script, world));
        return absl::OkStatus();
      },
      {.threads_per_rank = 1,
       .test = {.adversarial_seed = script.adversarial_seed}}));
  for (const ScriptResult& result : results) {
    if (result.summoned == results[0].summoned) continue;
    return absl::InternalError("ranks differ in what they could summon");
  }
  return results;
}

}  // namespace crosshatch
