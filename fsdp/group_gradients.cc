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

// Owns the gradient of one gathered parameter: a place in the full gradients.
class GroupGradients::Sink final : public GradSink {
 public:
  Sink(GroupGradients& group, size_t index) : group_(group), index_(index) {}

  GradDestination Acquire() override {
    if (!group_.pending()) group_.AttachFull();
    Destination& destination = group_.destinations_[index_];
    return {destination.full, std::exchange(destination.written, true)};
  }

  void Complete() override {
    group_.destinations_[index_].complete = true;
    if (group_.on_complete_ && group_.complete()) group_.on_complete_();
  }

 private:
  GroupGradients& group_;
  const size_t index_;
};

GroupGradients::GroupGradients(GroupCore& core, double divide_factor,
                               bool force_sum)
    : core_(core),
      divide_factor_(divide_factor),
      force_sum_(force_sum),
      full_(std::make_shared<Storage>(
          core.plan.full_elems() * SizeOf(core.reduce_dtype),
          absl::StrCat(core.name, " (full gradients)"))) {}

GroupGradients::~GroupGradients() {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    if (destinations_[i].sink == nullptr) continue;
    Tensor& leaf = core_.members[i].gathered;
    leaf.set_requires_grad(true);
    SetGradSink(leaf, nullptr);
  }
}

absl::Status GroupGradients::MakeCommunicators() {
  CH_ASSIGN_OR_RETURN(
      reduce_comm_,
      core_.mesh.communicator(core_.shard_axis(), kReduceScatterStream));
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
  FollowTrainability();
}

bool GroupGradients::trainable() const {
  for (const GroupMember& member : core_.members) {
    if (member.gathered.requires_grad()) return true;
  }
  return false;
}

bool GroupGradients::trains_all() const {
  for (const GroupMember& member : core_.members) {
    if (!member.gathered.requires_grad()) return false;
  }
  return true;
}

void GroupGradients::FollowTrainability() {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    GroupMember& member = core_.members[i];
    const bool trained = member.parameter->requires_grad();
    if (member.gathered.requires_grad() == trained) continue;
    member.gathered.set_requires_grad(trained);
    std::shared_ptr<Sink>& sink = destinations_[i].sink;
    if (!trained || sink != nullptr) continue;
    sink = std::make_shared<Sink>(*this, i);
    SetGradSink(member.gathered, sink);
  }
}

bool GroupGradients::complete() const {
  for (size_t i = 0; i < destinations_.size(); ++i) {
    if (!destinations_[i].complete &&
        core_.members[i].gathered.requires_grad()) {
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
}

// From compute, which has the last word on all of it.
std::shared_ptr<Storage> GroupGradients::Lease(DType dtype,
                                               MemoryClass memory_class) {
  RankContext& context = core_.comm->context();
  return std::make_shared<Storage>(
      context.allocator().Allocate(core_.shard_elems() * SizeOf(dtype),
                                   memory_class, context.compute_stream()),
      context.device());
}

bool GroupGradients::PrepareSharded(std::shared_ptr<Storage>& sharded) {
  bool accumulate = false;
  for (const GroupMember& member : core_.members) {
    if (member.parameter->grad().defined()) accumulate = true;
  }
  if (accumulate) sharded = sharded_.lock();
  if (sharded == nullptr) {
    RankContext& context = core_.comm->context();
    sharded = std::make_shared<Storage>(
        core_.ShardMemory(context).Allocate(
            core_.shard_elems() * SizeOf(core_.shard_dtype),
            MemoryClass::kGradient, context.compute_stream()),
        context.device());
    sharded_ = sharded;
  }
  if (!accumulate) return false;
  // Every part must hold what is added to, on the stream that writes next.
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    const Tensor& gradient = member.parameter->grad();
    const Tensor part = core_.ShardOf(i, sharded, core_.shard_dtype);
    if (!gradient.defined()) {
      // Dropped by itself, or never shown: the part may hold an old one.
      Finish();
      ZeroInPlace(part);
    } else if (LocalTensor(gradient).storage() != sharded) {
      Finish();
      CopyInPlace(part, LocalTensor(gradient));
      member.parameter->set_grad(Tensor());
      destinations_[static_cast<size_t>(i)].written = true;
    }
  }
  return true;
}

const std::string& GroupGradients::Label(bool with_partial) {
  if (reduce_unused_) return core_.name;
  lacking_.resize(destinations_.size());
  bool lacks_any = false;
  bool changed = false;
  for (size_t i = 0; i < destinations_.size(); ++i) {
    const Destination& destination = destinations_[i];
    const GroupMember& member = core_.members[i];
    // One that has a gradient from before gets the others' part in any case.
    const bool lacks = member.gathered.requires_grad() &&
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

void GroupGradients::EndReductions(bool reports) {
  if (!requires_sync_) return;
  if (!std::exchange(took_part_, false) && reports && trainable()) {
    IssueBarrier(reduce_comm_, core_.comm->reduce_scatter());
    if (requires_all_reduce_ && replicate_comm_ != nullptr) {
      core_.comm->all_reduce().Wait(reported_);
      IssueBarrier(replicate_comm_, core_.comm->all_reduce());
    }
  }
}

void GroupGradients::ReduceScatterTo(const Storage& target, double scale) {
  Stream& stream = core_.comm->reduce_scatter();
  stream.Wait(core_.comm->compute().Record());
  Collective reduce{.kind = CollectiveKind::kReduceScatter,
                    .dtype = core_.reduce_dtype,
                    .reduce_op = ReduceOp::kSum,
                    .scale = scale,
                    .label = Label(/*with_partial=*/false),
                    .about = core_.about};
  for (int r = 0; r < core_.plan.num_shards(); ++r) {
    reduce.send.push_back(
        core_.plan.FullSegments(full_->data(), core_.reduce_dtype, r));
  }
  reduce.recv.push_back(
      core_.plan.ShardSegments(target.data(), core_.shard_rank));
  core_.Log("reduce_scatter", full_->bytes());
  BeginSpan(stream, "reduce_scatter", core_.name);
  core_.IssueBy(core_.custom.reduce_scatter, "reduce_scatter", *reduce_comm_,
                std::move(reduce), stream);
  EndSpan(stream, "reduce_scatter", core_.name);
  Block full = full_->Detach();
  full.UsedOn(stream);
  core_.comm->HoldUntilNextReduction(std::move(full));
}

void GroupGradients::KeepPartial(double scale) {
  Stream& stream = core_.comm->reduce_scatter();
  if (partial_ == nullptr) {
    partial_ = Lease(core_.reduce_dtype, MemoryClass::kGradient);
    ReduceScatterTo(*partial_, scale);
  } else {
    const std::shared_ptr<Storage> reduced =
        Lease(core_.reduce_dtype, MemoryClass::kCommunication);
    ReduceScatterTo(*reduced, scale);
    StreamScope on_stream(stream);
    AddInPlace(core_.ShardView(partial_, core_.reduce_dtype),
               core_.ShardView(reduced, core_.reduce_dtype));
    reduced->block().UsedOn(stream);
  }
  partial_->block().UsedOn(stream);
  reduced_ = stream.Record();
  for (Destination& destination : destinations_) {
    if (std::exchange(destination.written, false)) destination.partial = true;
  }
}

void GroupGradients::Reduce() {
  if (!requires_sync_) return;
  if (!pending()) {
    const bool sums_partial = partial_ != nullptr && requires_all_reduce_;
    if (!sums_partial && !(reduce_unused_ && trainable())) return;
    AttachFull();
  }
  took_part_ = true;
  NoGrad no_grad;
  const GradientDivision division =
      PlanGradientDivision(core_.reduce_dtype, divide_factor_,
                           replicate_comm_ != nullptr, force_sum_);
  for (const Destination& destination : destinations_) {
    if (!destination.written) {
      ZeroInPlace(destination.full);
    } else if (division.before != 1) {
      MulInPlace(destination.full, division.before);
    }
  }
  if (replicate_comm_ != nullptr && !requires_all_reduce_) {
    KeepPartial(division.reduce_scatter);
    return;
  }

  std::shared_ptr<Storage> sharded;
  const bool accumulate = PrepareSharded(sharded);
  const bool in_place = !accumulate && !core_.offloaded &&
                        core_.reduce_dtype == core_.shard_dtype;
  const std::shared_ptr<Storage> reduced =
      in_place ? sharded
               : Lease(core_.reduce_dtype, MemoryClass::kCommunication);
  const Tensor reduced_view = core_.ShardView(reduced, core_.reduce_dtype);
  ReduceScatterTo(*reduced, division.reduce_scatter);
  Stream* last = &core_.comm->reduce_scatter();
  if (partial_ != nullptr) {
    StreamScope on_stream(*last);
    AddInPlace(reduced_view, core_.ShardView(partial_, core_.reduce_dtype));
    partial_->block().UsedOn(*last);
    partial_ = nullptr;
  }
  if (replicate_comm_ != nullptr) {
    Stream& stream = core_.comm->all_reduce();
    stream.Wait(last->Record());
    last = &stream;
    Collective reduce{.kind = CollectiveKind::kAllReduce,
                      .dtype = core_.reduce_dtype,
                      .reduce_op = ReduceOp::kSum,
                      .scale = division.all_reduce,
                      .label = Label(/*with_partial=*/true),
                      .about = core_.about};
    reduce.send.push_back(
        core_.plan.ShardSegments(reduced->data(), core_.shard_rank));
    reduce.recv = reduce.send;
    core_.Log("all_reduce", reduced->bytes());
    BeginSpan(stream, "all_reduce", core_.name);
    CH_CHECK_OK(replicate_comm_->Issue(std::move(reduce), stream));
    EndSpan(stream, "all_reduce", core_.name);
  }
  if (core_.custom.all_reduce_hook) {
    if (core_.custom.hook_stream != nullptr) {
      core_.custom.hook_stream->Wait(last->Record());
      last = core_.custom.hook_stream;
    }
    StreamScope on_stream(*last);
    core_.custom.all_reduce_hook(reduced_view);
    reduced->block().UsedOn(*last);
  }
  if (division.after != 1) {
    StreamScope on_stream(*last);
    MulInPlace(reduced_view, division.after);
  }
  if (core_.offloaded) {
    Stream& stream = core_.comm->to_host();
    stream.Wait(last->Record());
    last = &stream;
    core_.Log("copy_to_host", sharded->bytes());
    BeginSpan(stream, "copy_to_host", core_.name);
  }
  if (!in_place) {
    StreamScope on_stream(*last);
    const Tensor to = core_.ShardView(sharded, core_.shard_dtype);
    if (accumulate) {
      AddInPlace(to, reduced_view);
    } else {
      CopyInPlace(to, reduced_view);
    }
    reduced->block().UsedOn(*last);
  }
  if (core_.offloaded) EndSpan(*last, "copy_to_host", core_.name);
  {
    StreamScope on_stream(*last);
    ShowGradients(sharded);
  }
  sharded->block().UsedOn(*last);
  reduced_ = last->Record();
}

void GroupGradients::ShowGradients(const std::shared_ptr<Storage>& sharded) {
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    Destination& destination = destinations_[static_cast<size_t>(i)];
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    const bool has_gradient =
        destination.written || destination.partial ||
        (reduce_unused_ && member.gathered.requires_grad());
    destination.written = destination.partial = false;
    if (!has_gradient) continue;
    if (!member.parameter->grad().defined()) {
      member.parameter->set_grad(
          MakeDTensor(core_.ShardOf(i, sharded, core_.shard_dtype),
                      member.sharded_form.mesh, member.sharded_form.layout,
                      member.parameter->data().sizes()));
    }
    if (core_.custom.gradient_ready) {
      core_.custom.gradient_ready(*member.parameter);
    }
  }
}

void GroupGradients::Finish() {
  core_.comm->compute().Wait(reduced_);
  core_.comm->compute().Wait(reported_);
  reduced_ = reported_ = Event();
}

void GroupGradients::EndBackward() {
  for (Destination& destination : destinations_) destination.complete = false;
}

void GroupGradients::Reset() {
  if (core_.comm == nullptr) return;
  Finish();
  if (pending()) full_->Detach();
  partial_ = nullptr;
  took_part_ = false;
  for (Destination& destination : destinations_) {
    destination.written = destination.complete = destination.partial = false;
  }
}

}  // namespace crosshatch::fsdp
