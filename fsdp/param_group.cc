// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/param_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/plain_extension.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

// The interval of `dim` that each shard rank holds, counted from the start of
// what this rank's gathered tensor holds of it.
std::vector<Interval> ShardIntervals(const ShardedForm& form, int fsdp_axis,
                                     ShapeView global_shape, int dim) {
  MeshCoordinate at = *form.mesh.coordinate();
  const Box whole =
      form.layout.WithReplicate(fsdp_axis).LocalBox(global_shape, at);
  std::vector<Interval> intervals;
  for (int r = 0; r < form.mesh.size(fsdp_axis); ++r) {
    at[static_cast<size_t>(fsdp_axis)] = r;
    intervals.push_back(
        RelativeTo(form.layout.LocalBox(global_shape, at), whole.offsets)
            .interval(dim));
  }
  return intervals;
}

absl::Status Annotate(const absl::Status& status, const std::string& name) {
  return absl::Status(status.code(), absl::StrCat("FullyShard: parameter ",
                                                  name, " ", status.message()));
}

}  // namespace

const char* Name(ParamState state) {
  switch (state) {
    case ParamState::kSharded:
      return "sharded";
    case ParamState::kGathering:
      return "gathering";
    case ParamState::kGathered:
      return "gathered";
  }
  return "?";
}

// Owns the gradient of one gathered parameter: a place in the group's full
// gradients.
class ParamGroup::Sink final : public GradSink {
 public:
  Sink(ParamGroup& group, size_t index) : group_(group), index_(index) {}

  GradDestination Acquire() override {
    Member& member = group_.members_[index_];
    if (!group_.full_gradients_->attached()) {
      RankContext& context = group_.comm_->context();
      group_.full_gradients_->Attach(
          context.allocator().Allocate(group_.full_gradients_->bytes(),
                                       MemoryClass::kGradient,
                                       context.compute_stream()),
          context.device());
    }
    return {member.full_gradient, std::exchange(member.written, true)};
  }

  void Complete() override {
    group_.members_[index_].complete = true;
    group_.OnMemberComplete();
  }

 private:
  ParamGroup& group_;
  const size_t index_;
};

absl::StatusOr<std::unique_ptr<ParamGroup>> ParamGroup::Create(
    std::string name, std::vector<nn::Parameter*> parameters,
    const DeviceMesh& mesh, const FullyShardOptions& options) {
  const ShardExtension& extension =
      options.extension != nullptr ? *options.extension : PlainExtension();
  const std::string& fsdp_axis_name = mesh.axis_names().back();
  std::vector<PlannedParameter> planned;
  std::vector<Member> members;
  for (nn::Parameter* parameter : parameters) {
    const Tensor& data = parameter->data();
    int dim = options.shard_dim ? options.shard_dim(*parameter) : 0;
    if (dim < 0) dim += data.ndim();
    if (dim < 0 || dim >= data.ndim()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "FullyShard: parameter ", parameter->name(), " of shape ",
          ToString(data.sizes()), " cannot be sharded on dim ", dim));
    }
    absl::StatusOr<ShardedForm> form = extension.Chunk(data, mesh, dim);
    if (!form.ok()) return Annotate(form.status(), parameter->name());
    CH_ASSIGN_OR_RETURN(const int axis,
                        form->mesh.layout().AxisIndex(fsdp_axis_name));
    planned.push_back({parameter->name(), extension.LocalOf(data).sizes(), dim,
                       ShardIntervals(*form, axis, data.sizes(), dim)});
    members.push_back({.parameter = parameter->shared_from_this(),
                       .form = extension.FormOf(data),
                       .sharded_form = *std::move(form)});
  }
  GroupPlan plan(std::move(planned), mesh.size(mesh.ndim() - 1));
  std::unique_ptr<ParamGroup> group(new ParamGroup(
      std::move(name), std::move(plan), std::move(members), mesh, options));
  CH_RETURN_IF_ERROR(group->MakeCommunicators());
  return group;
}

void ParamGroup::Commit() {
  // Forward tensors first: they take their kind from the unsharded parameter.
  MakeForwardTensors();
  MakeShards();
}

ParamGroup::ParamGroup(std::string name, GroupPlan plan,
                       std::vector<Member> members, const DeviceMesh& mesh,
                       const FullyShardOptions& options)
    : name_(std::move(name)),
      plan_(std::move(plan)),
      members_(std::move(members)),
      shard_rank_(mesh.coordinate()->back()),
      trainable_(members_.front().parameter->requires_grad()),
      shard_dtype_(members_.front().parameter->data().dtype()),
      extension_(options.extension),
      mesh_(mesh) {
  const MixedPrecisionPolicy& precision = options.mixed_precision;
  gather_dtype_ = precision.param_dtype.value_or(shard_dtype_);
  reduce_dtype_ = precision.reduce_dtype.value_or(shard_dtype_);
  gradient_scale_ = 1.0 / options.gradient_divide_factor.value_or(mesh.size());
}

ParamGroup::~ParamGroup() {
  for (Member& member : members_) {
    if (!member.gathered.defined()) continue;
    SetGradSink(member.gathered, nullptr);
    member.parameter->set_gathered(Tensor());
  }
}

absl::Status ParamGroup::MakeCommunicators() {
  const int shard_axis = mesh_.ndim() - 1;
  CH_ASSIGN_OR_RETURN(gather_comm_,
                      mesh_.communicator(shard_axis, kAllGatherStream));
  CH_ASSIGN_OR_RETURN(reduce_comm_,
                      mesh_.communicator(shard_axis, kReduceScatterStream));
  if (shard_axis == 1) {
    CH_ASSIGN_OR_RETURN(replicate_comm_,
                        mesh_.communicator(0, kAllReduceStream));
  }
  return absl::OkStatus();
}

const ShardExtension& ParamGroup::extension() const {
  return extension_ != nullptr ? *extension_ : PlainExtension();
}

std::vector<const nn::Parameter*> ParamGroup::parameters() const {
  std::vector<const nn::Parameter*> parameters;
  for (const Member& member : members_) {
    parameters.push_back(member.parameter.get());
  }
  return parameters;
}

void ParamGroup::MakeShards() {
  const int64_t bytes = plan_.shard_elems(shard_rank_) * SizeOf(shard_dtype_);
  shards_ = std::make_shared<Storage>(bytes, name_);
  RankContext& context = RankContext::Current();
  NoGrad no_grad;
  for (int i = 0; i < plan_.num_parameters(); ++i) {
    Member& member = members_[static_cast<size_t>(i)];
    const Tensor whole = extension().LocalOf(member.parameter->data());
    const Shape shape = plan_.ShardShape(i, shard_rank_);
    const Tensor shard =
        MakeView(shards_, plan_.shard_offset(i, shard_rank_), shape,
                 ContiguousStrides(shape), shard_dtype_);
    if (whole.storage()->attached()) {
      if (!shards_->attached()) {
        shards_->Attach(
            context.allocator().Allocate(bytes, MemoryClass::kParameter,
                                         context.current_stream()),
            context.device());
      }
      const PlannedParameter& planned = plan_.parameter(i);
      const Interval piece =
          planned.intervals[static_cast<size_t>(shard_rank_)];
      CopyInPlace(shard,
                  Slice(whole, planned.shard_dim, piece.begin, piece.end));
    }
    Tensor sharded =
        MakeDTensor(shard, member.sharded_form.mesh, member.sharded_form.layout,
                    member.parameter->data().sizes());
    member.parameter->set_data(std::move(sharded));
  }
}

void ParamGroup::MakeForwardTensors() {
  gathered_ = std::make_shared<Storage>(gathered_bytes(),
                                        absl::StrCat(name_, " (gathered)"));
  full_gradients_ =
      std::make_shared<Storage>(plan_.full_elems() * SizeOf(reduce_dtype_),
                                absl::StrCat(name_, " (full gradients)"));
  for (int i = 0; i < plan_.num_parameters(); ++i) {
    Member& member = members_[static_cast<size_t>(i)];
    const Shape& shape = plan_.parameter(i).full_shape;
    const Shape strides = ContiguousStrides(shape);
    member.gathered = member.form->Wrap(MakeView(
        gathered_, plan_.full_offset(i), shape, strides, gather_dtype_));
    if (!trainable_) continue;
    member.gathered.set_requires_grad(true);
    member.full_gradient = member.form->Wrap(MakeView(
        full_gradients_, plan_.full_offset(i), shape, strides, reduce_dtype_));
    member.sink = std::make_shared<Sink>(*this, static_cast<size_t>(i));
    SetGradSink(member.gathered, member.sink);
  }
  for (Member& member : members_) {
    member.parameter->set_gathered(member.gathered);
  }
}

void ParamGroup::Log(const char* what, int64_t bytes) const {
  if (EventSink* sink = comm_->context().sink(); sink != nullptr) {
    sink->Write({.kind = EventKind::kFsdp,
                 .what = what,
                 .subject = &name_,
                 .where = nullptr,
                 .bytes = bytes});
  }
}

void ParamGroup::MoveTo(ParamState next) {
  const bool legal =
      (state_ == ParamState::kSharded && next == ParamState::kGathering) ||
      (state_ == ParamState::kGathering && next == ParamState::kGathered) ||
      (state_ == ParamState::kGathered && next == ParamState::kSharded);
  CH_CHECK(legal) << "FSDP group " << name_ << ": " << Name(state_) << " -> "
                  << Name(next);
  state_ = next;
}

Tensor ParamGroup::ShardView(const std::shared_ptr<Storage>& storage,
                             DType dtype) const {
  return MakeView(storage, 0, {plan_.shard_elems(shard_rank_)}, {1}, dtype);
}

void ParamGroup::Unshard() {
  if (state_ != ParamState::kSharded) return;
  RankContext& context = comm_->context();
  Stream& stream = comm_->all_gather();
  CH_CHECK(shards_->attached())
      << "FSDP group " << name_
      << ": its parameters have no memory yet; call Module::Materialize";
  gathered_->Attach(
      context.allocator().Allocate(gathered_->bytes(),
                                   MemoryClass::kGatheredParameter, stream),
      context.device());
  std::shared_ptr<Storage> source = shards_;
  if (gather_dtype_ != shard_dtype_) {
    source = std::make_shared<Storage>(
        context.allocator().Allocate(
            plan_.shard_elems(shard_rank_) * SizeOf(gather_dtype_),
            MemoryClass::kCommunication, stream),
        context.device());
    StreamScope on_stream(stream);
    NoGrad no_grad;
    CopyInPlace(ShardView(source, gather_dtype_),
                ShardView(shards_, shard_dtype_));
  }
  Collective gather{.kind = CollectiveKind::kAllGather,
                    .dtype = gather_dtype_,
                    .label = name_};
  gather.send.push_back(plan_.ShardSegments(source->data(), shard_rank_));
  for (int r = 0; r < plan_.num_shards(); ++r) {
    gather.recv.push_back(
        plan_.FullSegments(gathered_->data(), gather_dtype_, r));
  }
  Log("unshard", gathered_->bytes());
  CH_CHECK_OK(gather_comm_->Issue(std::move(gather), stream));
  gathered_event_ = stream.Record();
  MoveTo(ParamState::kGathering);
}

void ParamGroup::WaitForUnshard() {
  Unshard();
  if (state_ != ParamState::kGathering) return;
  comm_->compute().Wait(gathered_event_);
  gathered_event_ = Event();
  Log("wait", 0);
  MoveTo(ParamState::kGathered);
}

void ParamGroup::Reshard() {
  if (state_ == ParamState::kSharded) return;
  // A gather that nobody came to use is waited for like any other: the lease
  // must not end before it.
  WaitForUnshard();
  Block block = gathered_->Detach();
  block.UsedOn(comm_->compute());
  Log("reshard", block.bytes());
  MoveTo(ParamState::kSharded);
}

bool ParamGroup::gradients_complete() const {
  for (const Member& member : members_) {
    if (!member.complete) return false;
  }
  return trainable_;
}

void ParamGroup::OnMemberComplete() {
  if (on_complete_ && gradients_complete()) on_complete_();
}

void ParamGroup::ReduceGradients() {
  if (!has_gradients()) return;
  RankContext& context = comm_->context();
  Stream& compute = comm_->compute();
  Stream& stream = comm_->reduce_scatter();
  NoGrad no_grad;
  std::shared_ptr<Storage> gradients = sharded_gradients_.lock();
  bool accumulate = gradients != nullptr;
  for (const Member& member : members_) {
    if (!member.written) ZeroInPlace(member.full_gradient);
    // ZeroGrad drops all gradients of a group, or none.
    if (member.written && !member.parameter->grad().defined()) {
      accumulate = false;
    }
  }
  const int64_t shard_elems = plan_.shard_elems(shard_rank_);
  // Leased from compute, which has the last word on all of it.
  const auto lease = [&](DType dtype, MemoryClass memory_class) {
    return std::make_shared<Storage>(
        context.allocator().Allocate(shard_elems * SizeOf(dtype), memory_class,
                                     compute),
        context.device());
  };
  const bool reduce_in_place = !accumulate && reduce_dtype_ == shard_dtype_;
  if (!accumulate) {
    gradients = lease(shard_dtype_, MemoryClass::kGradient);
    sharded_gradients_ = gradients;
  }
  const std::shared_ptr<Storage> reduced =
      reduce_in_place ? gradients
                      : lease(reduce_dtype_, MemoryClass::kCommunication);

  stream.Wait(compute.Record());
  Collective reduce{.kind = CollectiveKind::kReduceScatter,
                    .dtype = reduce_dtype_,
                    .reduce_op = ReduceOp::kSum,
                    .scale = gradient_scale_,
                    .label = name_};
  for (int r = 0; r < plan_.num_shards(); ++r) {
    reduce.send.push_back(
        plan_.FullSegments(full_gradients_->data(), reduce_dtype_, r));
  }
  reduce.recv.push_back(plan_.ShardSegments(reduced->data(), shard_rank_));
  Log("reduce_scatter", full_gradients_->bytes());
  CH_CHECK_OK(reduce_comm_->Issue(std::move(reduce), stream));
  Block full = full_gradients_->Detach();
  full.UsedOn(stream);
  comm_->HoldUntilNextReduction(std::move(full));

  Stream* last = &stream;
  if (replicate_comm_ != nullptr) {
    last = &comm_->all_reduce();
    last->Wait(stream.Record());
    Log("all_reduce", shard_elems * SizeOf(reduce_dtype_));
    CH_CHECK_OK(AllReduce(*replicate_comm_, reduced->data(), shard_elems,
                          reduce_dtype_, ReduceOp::kSum, *last, name_));
  }
  if (!reduce_in_place) {
    StreamScope on_stream(*last);
    const Tensor from = ShardView(reduced, reduce_dtype_);
    const Tensor to = ShardView(gradients, shard_dtype_);
    if (accumulate) {
      AddInPlace(to, from);
    } else {
      CopyInPlace(to, from);
    }
    reduced->block().UsedOn(*last);
  }
  gradients->block().UsedOn(*last);
  reduced_event_ = last->Record();

  for (int i = 0; i < plan_.num_parameters(); ++i) {
    Member& member = members_[static_cast<size_t>(i)];
    if (member.written && !accumulate) {
      const Shape shape = plan_.ShardShape(i, shard_rank_);
      member.parameter->set_grad(
          MakeDTensor(MakeView(gradients, plan_.shard_offset(i, shard_rank_),
                               shape, ContiguousStrides(shape), shard_dtype_),
                      member.sharded_form.mesh, member.sharded_form.layout,
                      member.parameter->data().sizes()));
    }
    member.written = false;
  }
}

void ParamGroup::FinishReduction() {
  comm_->compute().Wait(reduced_event_);
  reduced_event_ = Event();
  for (Member& member : members_) member.complete = false;
}

std::string ParamGroup::Describe() const {
  std::string text =
      absl::StrCat(name_, ": ", crosshatch::Name(shard_dtype_),
                   " shards, gathered as ", crosshatch::Name(gather_dtype_));
  if (trainable_) {
    absl::StrAppend(&text, ", gradients reduced as ",
                    crosshatch::Name(reduce_dtype_));
  } else {
    absl::StrAppend(&text, ", frozen");
  }
  absl::StrAppend(&text, ", over ", gather_comm_->size(), " ranks");
  if (replicate_comm_ != nullptr) {
    absl::StrAppend(&text, ", replicated ", replicate_comm_->size(), " times");
  }
  absl::StrAppend(&text, "\n", plan_.ToString());
  return text;
}

}  // namespace crosshatch::fsdp
