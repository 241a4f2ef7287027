// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/group_gradients.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/span.h"

namespace crosshatch::fsdp {

GroupGradients::GroupGradients(GroupCore& core)
    : core_(core),
      full_(std::make_shared<Storage>(
          core.plan.full_elems() * SizeOf(core.reduce_dtype),
          absl::StrCat(core.name, " (full gradients)"))) {}

GroupGradients::~GroupGradients() {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    if (!destinations_[i].has_sink) continue;
    Tensor& leaf = core_.members[i].unsharded;
    leaf.set_requires_grad(true);
    SetGradSink(leaf, nullptr);
  }
}

absl::Status GroupGradients::MakeCommunicators() {
  CH_ASSIGN_OR_RETURN(
      reduce_comm_,
      core_.mesh.communicator(core_.shard_axis(), core_.reduce_stream_name()));
  if (core_.replicated()) {
    CH_ASSIGN_OR_RETURN(replicate_comm_,
                        core_.mesh.communicator(0, kAllReduceStream));
  }
  return absl::OkStatus();
}

void GroupGradients::MakeDestinations() {
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    const Shape& shape = core_.plan.parameter(i).full_shape;
    destinations_.push_back(
        {.full = core_.members[static_cast<size_t>(i)].form->Wrap(
             MakeView(full_, core_.plan.full_offset(i), shape,
                      ContiguousStrides(shape), core_.reduce_dtype))});
  }
}

bool GroupGradients::trainable() const {
  for (const GroupMember& member : core_.members) {
    if (member.unsharded.requires_grad()) return true;
  }
  return false;
}

bool GroupGradients::trains_all() const {
  for (const GroupMember& member : core_.members) {
    if (!member.unsharded.requires_grad()) return false;
  }
  return true;
}

void GroupGradients::SyncRequiresGrad(
    absl::FunctionRef<std::shared_ptr<GradSink>(size_t index)> make_sink) {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    GroupMember& member = core_.members[i];
    const bool trained = member.parameter->requires_grad();
    if (member.unsharded.requires_grad() == trained) continue;
    member.unsharded.set_requires_grad(trained);
    if (!trained || std::exchange(destinations_[i].has_sink, true)) continue;
    SetGradSink(member.unsharded, make_sink(i));
  }
}

GradDestination GroupGradients::Acquire(size_t index) {
  if (!pending()) AttachFull();
  Destination& destination = destinations_[index];
  return {destination.full, std::exchange(destination.written, true)};
}

bool GroupGradients::Complete(size_t index) {
  destinations_[index].complete = true;
  return complete();
}

bool GroupGradients::complete() const {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    if (!destinations_[i].complete &&
        core_.members[i].unsharded.requires_grad()) {
      return false;
    }
  }
  return trainable();
}

void GroupGradients::AttachFull() {
  RankContext& context = core_.comm->context();
  full_->Attach(
      context.allocator().Allocate(full_->bytes(), MemoryClass::kGradient,
                                   context.compute_stream()),
      context.device());
  // Hooks may read the reduced gaps.
  const NoGrad no_grad;
  for (const Interval& gap : core_.plan.moved_gaps()) {
    ZeroInPlace(
        MakeView(full_, gap.begin, {gap.size()}, {1}, core_.reduce_dtype));
  }
}

// Leases on the compute stream, which uses the memory last.
std::shared_ptr<Storage> GroupGradients::Lease(DType dtype,
                                               MemoryClass memory_class) {
  RankContext& context = core_.comm->context();
  return std::make_shared<Storage>(
      context.allocator().Allocate(core_.shard_elems() * SizeOf(dtype),
                                   memory_class, context.compute_stream()),
      context.device());
}

bool GroupGradients::accumulates() const {
  for (const GroupMember& member : core_.members) {
    if (member.parameter->grad().defined()) return true;
  }
  return false;
}

std::shared_ptr<Storage> GroupGradients::PrepareSharded(bool accumulate) {
  std::shared_ptr<Storage> sharded;
  if (accumulate) sharded = sharded_.lock();
  if (sharded == nullptr) {
    RankContext& context = core_.comm->context();
    sharded = std::make_shared<Storage>(
        core_.ShardMemory(context).Allocate(
            core_.shard_elems() * SizeOf(core_.shard_dtype),
            MemoryClass::kGradient, context.compute_stream()),
        core_.ShardMemory(context).device());
    sharded_ = sharded;
  }
  if (!accumulate) return sharded;
  // Accumulation needs initialized parts, on the stream that writes next.
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    const Tensor& gradient = member.parameter->grad();
    const Tensor part = core_.ShardOf(i, sharded, core_.shard_dtype);
    if (!gradient.defined()) {
      // The gradient was dropped or never published, and its part may be stale.
      Finish();
      ZeroInPlace(part);
    } else if (LocalTensor(gradient).storage() != sharded) {
      Finish();
      CopyInPlace(part, LocalTensor(gradient));
      member.parameter->set_grad(Tensor());
      destinations_[static_cast<size_t>(i)].written = true;
    }
  }
  return sharded;
}

const std::string& GroupGradients::Label(bool with_partial,
                                         bool reduce_unused) {
  if (reduce_unused) return core_.name;
  lacking_.resize(destinations_.size());
  bool lacks_any = false;
  bool changed = false;
  for (size_t i = 0; i < destinations_.size(); ++i) {
    const Destination& destination = destinations_[i];
    const GroupMember& member = core_.members[i];
    // A parameter with an earlier gradient receives the other ranks' part in
    // any case.
    const bool lacks = member.unsharded.requires_grad() &&
                       !destination.written &&
                       !(with_partial && destination.partial) &&
                       !member.parameter->grad().defined();
    lacks_any = lacks_any || lacks;
    changed = changed || lacking_[i] != lacks;
    lacking_[i] = lacks;
  }
  if (!lacks_any) return core_.name;
  if (changed) {
    lacking_label_ = absl::StrCat(core_.name, ", without a gradient of ");
    const char* separator = "";
    for (size_t i = 0; i < lacking_.size(); ++i) {
      if (!lacking_[i]) continue;
      absl::StrAppend(&lacking_label_, separator,
                      core_.plan.parameter(static_cast<int>(i)).name);
      separator = ", ";
    }
  }
  return lacking_label_;
}

void GroupGradients::IssueBarrier(Communicator* comm, Stream& stream) {
  if (comm == nullptr || comm->size() == 1) return;
  CH_CHECK_OK(
      comm->Issue({.kind = CollectiveKind::kBarrier,
                   .label = absl::StrCat("nothing to reduce of ", core_.name),
                   .about = core_.about},
                  stream));
  reported_ = stream.Record();
}

void GroupGradients::EndReductions(const Settings& settings, bool reports) {
  if (!settings.requires_gradient_sync) return;
  if (!std::exchange(has_reduced_, false) && reports && trainable()) {
    IssueBarrier(reduce_comm_, core_.ReduceStream());
    if (settings.requires_all_reduce && replicate_comm_ != nullptr) {
      core_.comm->all_reduce().Wait(reported_);
      IssueBarrier(replicate_comm_, core_.comm->all_reduce());
    }
  }
}

ReductionFacts GroupGradients::FactsOf(const Settings& settings) const {
  const bool replicated = replicate_comm_ != nullptr;
  return {.reduce_dtype = core_.reduce_dtype,
          .shard_dtype = core_.shard_dtype,
          .replicated = replicated,
          .sums_replicas = settings.requires_all_reduce,
          .has_partial = partial_ != nullptr,
          .accumulates = accumulates(),
          .offloaded = core_.offloaded,
          .hook = static_cast<bool>(core_.custom->all_reduce_hook),
          .hook_stream = core_.custom->hook_stream != nullptr,
          .division = PlanGradientDivision(
              core_.reduce_dtype,
              settings.reduction.divide_factor.value_or(core_.batch_ranks),
              replicated, settings.reduction.force_sum)};
}

void GroupGradients::Reduce(const Settings& settings) {
  if (!settings.requires_gradient_sync) return;
  if (!pending()) {
    const bool sums_partial =
        partial_ != nullptr && settings.requires_all_reduce;
    if (!sums_partial && !(settings.reduce_unused_params && trainable()))
      return;
    AttachFull();
  }
  has_reduced_ = true;
  const NoGrad no_grad;
  for (const Destination& destination : destinations_) {
    if (!destination.written) ZeroInPlace(destination.full);
  }
  const ReductionFacts facts = FactsOf(settings);
  const ReductionPlan plan = PlanReduction(facts);
  Buffers buffers;
  const bool keeps = plan.result == ReductionBuffer::kPartial;
  if (!keeps) {
    buffers.sharded = PrepareSharded(facts.accumulates);
  } else if (partial_ == nullptr) {
    partial_ = Lease(core_.reduce_dtype, MemoryClass::kGradient);
  }
  if (plan.needs_reduced()) {
    buffers.reduced = Lease(core_.reduce_dtype, MemoryClass::kCommunication);
  }
  Stream* last = &core_.comm->compute();
  for (const ReductionStep& step : plan.steps) {
    Stream& stream = StreamOf(step.stream);
    if (&stream != last) stream.Wait(last->Record());
    last = &stream;
    RunStep(step, stream, buffers, settings.reduce_unused_params);
  }
  StorageOf(plan.result, buffers)->block().UsedOn(*last);
  reduced_ = last->Record();
  if (!keeps) return;
  for (Destination& destination : destinations_) {
    if (std::exchange(destination.written, false)) destination.partial = true;
  }
}

Stream& GroupGradients::StreamOf(ReductionStream stream) const {
  switch (stream) {
    case ReductionStream::kCompute:
      break;
    case ReductionStream::kReduceScatter:
      return core_.ReduceStream();
    case ReductionStream::kAllReduce:
      return core_.comm->all_reduce();
    case ReductionStream::kHook:
      return *core_.custom->hook_stream;
    case ReductionStream::kToHost:
      return core_.comm->to_host();
  }
  return core_.comm->compute();
}

const std::shared_ptr<Storage>& GroupGradients::StorageOf(
    ReductionBuffer buffer, const Buffers& buffers) const {
  switch (buffer) {
    case ReductionBuffer::kFull:
      break;
    case ReductionBuffer::kPartial:
      return partial_;
    case ReductionBuffer::kReduced:
      return buffers.reduced;
    case ReductionBuffer::kSharded:
      return buffers.sharded;
  }
  return full_;
}

Tensor GroupGradients::ViewOf(ReductionBuffer buffer,
                              const Buffers& buffers) const {
  return core_.ShardView(StorageOf(buffer, buffers),
                         buffer == ReductionBuffer::kSharded
                             ? core_.shard_dtype
                             : core_.reduce_dtype);
}

void GroupGradients::RunStep(const ReductionStep& step, Stream& stream,
                             Buffers& buffers, bool reduce_unused) {
  const StreamScope on_stream(stream);
  switch (step.op) {
    case ReductionOp::kScale:
      if (step.to != ReductionBuffer::kFull) {
        MulInPlace(ViewOf(step.to, buffers), step.scale);
        break;
      }
      for (const Destination& destination : destinations_) {
        if (destination.written) MulInPlace(destination.full, step.scale);
      }
      break;
    case ReductionOp::kReduceScatter:
      ReduceScatter(*StorageOf(step.to, buffers), step.scale, stream,
                    reduce_unused);
      break;
    case ReductionOp::kAllReduce:
      AllReduce(*StorageOf(step.to, buffers), step.scale, stream,
                reduce_unused);
      break;
    case ReductionOp::kHook:
      core_.custom->all_reduce_hook(ViewOf(step.to, buffers));
      break;
    case ReductionOp::kCopy:
    case ReductionOp::kAdd:
      Transfer(step, stream, buffers);
      break;
    case ReductionOp::kPublish:
      PublishGradients(buffers.sharded, reduce_unused);
      break;
  }
}

void GroupGradients::ReduceScatter(const Storage& target, double scale,
                                   Stream& stream, bool reduce_unused) {
  Collective reduce{.kind = CollectiveKind::kReduceScatter,
                    .dtype = core_.reduce_dtype,
                    .reduce_op = ReduceOp::kSum,
                    .scale = scale,
                    .label = Label(/*with_partial=*/false, reduce_unused),
                    .about = core_.about};
  for (int r = 0; r < core_.plan.num_shards(); ++r) {
    reduce.send.push_back(
        core_.plan.FullSegments(full_->data(), core_.reduce_dtype, r));
  }
  reduce.recv.push_back(
      core_.plan.ShardSegments(target.data(), core_.shard_rank));
  core_.Log("reduce_scatter", full_->bytes());
  BeginSpan(stream, "reduce_scatter", core_.name);
  core_.Issue(core_.custom->reduce_scatter, "reduce_scatter", *reduce_comm_,
              std::move(reduce), stream);
  EndSpan(stream, "reduce_scatter", core_.name);
  Block full = full_->Detach();
  full.UsedOn(stream);
  core_.comm->HoldUntilNextReduction(std::move(full));
}

void GroupGradients::AllReduce(const Storage& target, double scale,
                               Stream& stream, bool reduce_unused) {
  Collective reduce{.kind = CollectiveKind::kAllReduce,
                    .dtype = core_.reduce_dtype,
                    .reduce_op = ReduceOp::kSum,
                    .scale = scale,
                    .label = Label(/*with_partial=*/true, reduce_unused),
                    .about = core_.about};
  reduce.send.push_back(
      core_.plan.ShardSegments(target.data(), core_.shard_rank));
  reduce.recv = reduce.send;
  core_.Log("all_reduce", target.bytes());
  BeginSpan(stream, "all_reduce", core_.name);
  CH_CHECK_OK(replicate_comm_->Issue(std::move(reduce), stream));
  EndSpan(stream, "all_reduce", core_.name);
}

void GroupGradients::Transfer(const ReductionStep& step, Stream& stream,
                              Buffers& buffers) {
  const bool to_host = step.stream == ReductionStream::kToHost;
  if (to_host) {
    core_.Log("copy_to_host", StorageOf(step.to, buffers)->bytes());
    BeginSpan(stream, "copy_to_host", core_.name);
  }
  const Tensor to = ViewOf(step.to, buffers);
  const Tensor from = ViewOf(step.from, buffers);
  if (step.op == ReductionOp::kAdd) {
    AddInPlace(to, from);
  } else {
    CopyInPlace(to, from);
    RankContext::Current().AddCopiedBytes(StorageOf(step.to, buffers)->bytes());
  }
  if (to_host) EndSpan(stream, "copy_to_host", core_.name);
  StorageOf(step.from, buffers)->block().UsedOn(stream);
  (step.from == ReductionBuffer::kPartial ? partial_ : buffers.reduced) =
      nullptr;
}

void GroupGradients::PublishGradients(const std::shared_ptr<Storage>& sharded,
                                      bool reduce_unused) {
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    Destination& destination = destinations_[static_cast<size_t>(i)];
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    const bool has_gradient =
        destination.written || destination.partial ||
        (reduce_unused && member.unsharded.requires_grad());
    destination.written = destination.partial = false;
    member.parameter->set_gradient_is_pending(false);
    if (!has_gradient) continue;
    if (!member.parameter->grad().defined()) {
      member.parameter->set_grad(
          MakeDTensor(core_.ShardOf(i, sharded, core_.shard_dtype),
                      member.sharded_form.mesh, member.sharded_form.layout,
                      member.parameter->data().sizes()));
    }
    if (core_.custom->gradient_ready) {
      core_.custom->gradient_ready(*member.parameter);
    }
  }
}

void GroupGradients::Finish() {
  Stream& compute = core_.comm->compute();
  BeginSpan(compute, "wait", "reduce");
  compute.Wait(reduced_);
  compute.Wait(reported_);
  EndSpan(compute, "wait", "reduce");
  reduced_ = reported_ = Event();
}

void GroupGradients::EndBackward() {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    Destination& destination = destinations_[i];
    destination.complete = false;
    core_.members[i].parameter->set_gradient_is_pending(destination.written ||
                                                        destination.partial);
  }
}

void GroupGradients::Reset() {
  if (core_.comm == nullptr) return;
  Finish();
  if (pending()) full_->Detach();
  partial_ = nullptr;
  has_reduced_ = false;
  for (size_t i = 0; i < destinations_.size(); ++i) {
    Destination& destination = destinations_[i];
    destination.written = destination.complete = destination.partial = false;
    core_.members[i].parameter->set_gradient_is_pending(false);
  }
}

}  // namespace crosshatch::fsdp
