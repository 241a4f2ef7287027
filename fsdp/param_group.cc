// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/param_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/first_rank_values.h"
#include "crosshatch/fsdp/group_shards.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/span.h"

namespace crosshatch::fsdp {
namespace {

absl::Status Annotate(const absl::Status& status, const std::string& name) {
  return absl::Status(status.code(), absl::StrCat("FullyShard: parameter ",
                                                  name, " ", status.message()));
}

}  // namespace

DType ParamGroup::ParamDType(const nn::Parameter& parameter,
                             const FullyShardOptions& options) {
  const MixedPrecisionPolicy& precision = options.mixed_precision;
  const DType own = parameter.data().dtype();
  if (options.gather_hooks) {
    const auto hooks = options.gather_hooks(parameter);
    if (hooks != nullptr && !hooks->has_post_all_gather()) {
      const auto inputs = hooks->Inputs(parameter.data().sizes());
      if (!inputs.empty()) return inputs[0].dtype;
    }
  }
  if (!IsFloatingPoint(own)) return own;
  if (precision.param_dtype_override) {
    const auto dtype = precision.param_dtype_override(parameter);
    if (dtype.has_value()) return *dtype;
  }
  return precision.param_dtype.value_or(own);
}

absl::StatusOr<std::unique_ptr<ParamGroup>> ParamGroup::Create(
    std::string name, const std::vector<Entry>& parameters,
    const DeviceMesh& mesh, const FullyShardOptions& options,
    const ShardExtension& extension) {
  const std::string& fsdp_axis_name = mesh.axis_names().back();
  std::vector<PlannedParameter> planned;
  std::vector<GroupMember> members;
  std::vector<std::string> notes;
  std::vector<int> fsdp_axes;
  for (const Entry& entry : parameters) {
    nn::Parameter& parameter = *entry.parameter;
    const Tensor& data = parameter.data();
    CH_ASSIGN_OR_RETURN(const int dim, ShardDim(parameter, options));
    absl::StatusOr<ShardedForm> form = extension.Chunk(data, mesh, dim);
    if (!form.ok()) return Annotate(form.status(), parameter.name());
    CH_ASSIGN_OR_RETURN(const int axis,
                        form->mesh.layout().AxisIndex(fsdp_axis_name));
    planned.push_back({parameter.name(), extension.LocalOf(data).sizes(), dim,
                       ShardIntervals(*form, axis, data.sizes(), dim)});
    fsdp_axes.push_back(axis);
    members.push_back({.parameter = parameter.shared_from_this(),
                       .form = extension.FormOf(data),
                       .sharded_form = *std::move(form)});
    notes.push_back(entry.note);
  }
  std::string about;
  for (const PlannedParameter& p : planned) {
    absl::StrAppend(&about, about.empty() ? "of " : ", ", p.name);
  }
  absl::StrAppend(
      &about,
      "; every rank must call the modules equally often, also in evaluation, "
      "with 0 rows if it has no data; if forwards use different parameters, "
      "set fsdp::Settings::reduce_unused_params");
  const int num_shards = mesh.size(mesh.ndim() - 1);
  absl::StatusOr<GroupPlan> plan =
      options.ragged_shard.has_value()
          ? MakeRagged(std::move(planned), fsdp_axes, *options.ragged_shard,
                       members)
          : GroupPlan(std::move(planned), num_shards);
  CH_RETURN_IF_ERROR(plan.status());
  const nn::Parameter& first = *parameters.front().parameter;
  const DType shard_dtype = first.data().dtype();
  GroupCore core{.name = std::move(name),
                 .about = std::make_shared<const std::string>(std::move(about)),
                 .plan = *std::move(plan),
                 .members = std::move(members),
                 .mesh = mesh,
                 .batch_ranks = mesh.size(),
                 .shard_rank = mesh.coordinate()->back(),
                 .shard_dtype = shard_dtype,
                 .param_dtype = ParamDType(first, options),
                 .reduce_dtype =
                     options.mixed_precision.reduce_dtype.value_or(shard_dtype),
                 .offloaded = options.cpu_offload};
  std::unique_ptr<ParamGroup> group(
      new ParamGroup(std::move(core), std::move(notes), options));
  CH_RETURN_IF_ERROR(group->MakeHookedGather(options));
  CH_RETURN_IF_ERROR(group->MakeCommunicators());
  CH_RETURN_IF_ERROR(
      group->MakePostForwardMesh(options.post_forward_mesh_size));
  return group;
}

absl::Status ParamGroup::Commit(const ShardExtension& extension) {
  // Forward tensors come first: their kind is that of the unsharded parameter.
  MakeForwardTensors();
  gradients_.MakeDestinations();
  for (size_t i = 0; i < core_.members.size(); ++i) {
    const GroupMember& member = core_.members[i];
    const int index = static_cast<int>(i);
    member.parameter->set_gathered(
        member.unsharded,
        unsharded_ == gathered_ && hooked_ != nullptr
            ? hooked_->Extras(index, hooked_->Gathered(index, gathered_))
            : TensorList());
  }
  return MakeShards(extension);
}

absl::Status ParamGroup::MakeHookedGather(const FullyShardOptions& options) {
  if (!options.gather_hooks) return absl::OkStatus();
  std::vector<std::shared_ptr<const GatherHooks>> hooks;
  for (const GroupMember& member : core_.members) {
    auto of_member = options.gather_hooks(*member.parameter);
    if (of_member == nullptr) return absl::OkStatus();  // So has no other.
    hooks.push_back(std::move(of_member));
  }
  CH_ASSIGN_OR_RETURN(hooked_,
                      HookedGather::Create(std::move(hooks), core_.plan));
  if (hooked_->has_post_all_gather() && options.post_forward_mesh_size > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard: post_forward_mesh_size ", options.post_forward_mesh_size,
        " for parameters with PostAllGather, such as ",
        core_.plan.parameter(0).name, ": what was gathered is freed; set 0"));
  }
  return absl::OkStatus();
}

ParamGroup::ParamGroup(GroupCore core, std::vector<std::string> notes,
                       const FullyShardOptions& options)
    : core_(std::move(core)),
      notes_(std::move(notes)),
      sync_from_first_rank_(options.sync_from_first_rank),
      gradients_(core_) {}

ParamGroup::~ParamGroup() {
  // Work that was issued to compute may still read gathered parameters, and an
  // issued gather may still read the shards.
  if (core_.comm != nullptr) {
    Reshard();
    set_keep_unsharded(false);
  }
  for (GroupMember& member : core_.members) {
    if (member.unsharded.defined()) member.parameter->set_gathered(Tensor());
  }
}

absl::Status ParamGroup::MakeCommunicators() {
  CH_ASSIGN_OR_RETURN(
      all_gather_comm_,
      core_.mesh.communicator(core_.shard_axis(), core_.gather_stream_name()));
  return gradients_.MakeCommunicators();
}

void ParamGroup::set_batch_mesh(const DeviceMesh& mesh) {
  const auto ranks = core_.mesh.layout().ranks();
  const bool has_all = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return mesh.layout().Contains(rank);
  });
  core_.batch_ranks = has_all ? mesh.size() : core_.mesh.size();
}

absl::Status ParamGroup::MakePostForwardMesh(int size) {
  const int shards = core_.plan.num_shards();
  if (size < 0 || (size > 0 && shards % size != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard: post_forward_mesh_size ", size, " does not divide the ",
        shards, " shard ranks of ", core_.mesh.ToString()));
  }
  if (size <= 1 || size == shards) return absl::OkStatus();
  const std::string& axis = core_.mesh.axis_names().back();
  CH_ASSIGN_OR_RETURN(
      post_forward_mesh_,
      core_.mesh.Unflatten(axis,
                           {{absl::StrCat(axis, "_between"), shards / size},
                            {absl::StrCat(axis, "_within"), size}}));
  CH_ASSIGN_OR_RETURN(post_forward_comm_,
                      post_forward_mesh_->communicator(
                          post_forward_mesh_->ndim() - 1, kAllGatherStream));
  post_forward_plan_ = gather_plan().Coarser(size);
  return absl::OkStatus();
}

std::vector<const nn::Parameter*> ParamGroup::parameters() const {
  std::vector<const nn::Parameter*> parameters;
  for (const GroupMember& member : core_.members) {
    parameters.push_back(member.parameter.get());
  }
  return parameters;
}

std::string ParamGroup::NamesOfParameters() const {
  std::string names;
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", core_.plan.parameter(i).name);
  }
  return names;
}

void ParamGroup::AttachShards() {
  RankContext& context = RankContext::Current();
  shards_->Attach(
      core_.ShardMemory(context).Allocate(
          shards_->bytes(), MemoryClass::kParameter, context.current_stream()),
      core_.ShardMemory(context).device());
}

absl::Status ParamGroup::MakeShards(const ShardExtension& extension) {
  shards_ = std::make_shared<Storage>(
      core_.shard_elems() * SizeOf(core_.shard_dtype), core_.name);
  NoGrad no_grad;
  std::vector<Tensor> wholes;
  for (const GroupMember& member : core_.members) {
    wholes.push_back(extension.LocalOf(member.parameter->data()));
  }
  std::vector<bool> has_values;
  if (sync_from_first_rank_) {
    CH_ASSIGN_OR_RETURN(has_values,
                        HasValuesOnFirstRank(core_.mesh, wholes, core_.name));
  } else {
    for (const Tensor& whole : wholes) {
      has_values.push_back(whole.storage()->attached());
    }
  }
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    Tensor whole = std::exchange(wholes[static_cast<size_t>(i)], Tensor());
    const Tensor shard = core_.ShardOf(i, shards_, core_.shard_dtype);
    if (has_values[static_cast<size_t>(i)]) {
      if (sync_from_first_rank_) {
        whole = whole.storage()->attached()
                    ? Clone(whole)
                    : Empty(whole.sizes(), whole.dtype());
        CH_RETURN_IF_ERROR(BroadcastFromFirstRank(core_.mesh, whole,
                                                  member.parameter->name()));
      }
      if (!shards_->attached()) AttachShards();
      const PlannedParameter& planned = core_.plan.parameter(i);
      const Interval piece =
          planned.intervals[static_cast<size_t>(core_.shard_rank)];
      CopyInPlace(shard,
                  Slice(whole, planned.shard_dim, piece.begin, piece.end));
    }
    member.sharded =
        MakeDTensor(shard, member.sharded_form.mesh, member.sharded_form.layout,
                    member.parameter->data().sizes());
    member.parameter->set_data(member.sharded);
    member.parameter->set_on_host(core_.offloaded);
  }
  return absl::OkStatus();
}

bool ParamGroup::IsReplaced(const GroupMember& member) const {
  const Tensor& data = member.parameter->data();
  return data.handler() != member.sharded.handler() &&
         LocalTensor(data).storage() != shards_;
}

void ParamGroup::AdoptReplacedData() {
  const NoGrad no_grad;
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    if (!IsReplaced(member)) continue;
    const Tensor data = member.parameter->data();
    const ShardedForm& form = member.sharded_form;
    CH_CHECK(data.is_distributed() && MeshOf(data) == form.mesh &&
             LayoutOf(data) == form.layout && data.dtype() == core_.shard_dtype)
        << "FSDP group " << core_.name << ": the data of parameter "
        << core_.plan.parameter(i).name << " was replaced by "
        << data.Describe() << ", which is not sharded as "
        << member.sharded.Describe()
        << "; call DistributeTensor with the latter's mesh and layout";
    if (!shards_->attached()) AttachShards();
    CopyInPlace(core_.ShardOf(i, shards_, core_.shard_dtype),
                LocalTensor(data));
    const Tensor gradient = data.grad();
    member.parameter->set_data(member.sharded);
    member.parameter->set_grad(gradient);
  }
}

void ParamGroup::BeginForward() const {
  if (hooked_ != nullptr) hooked_->BeginForward();
}

void ParamGroup::OrderAllGather() {
  if (shards_->version() == ordered_version_) return;
  Stream& reader =
      core_.offloaded ? core_.comm->to_device() : core_.GatherStream();
  reader.Wait(core_.comm->compute().Record());
  MarkShardsOrdered();
}

void ParamGroup::MakeForwardTensors() {
  unsharded_ = std::make_shared<Storage>(
      unsharded_bytes(), absl::StrCat(core_.name, " (gathered)"));
  gathered_ = hooked_ != nullptr && hooked_->has_post_all_gather()
                  ? std::make_shared<Storage>(
                        gather_plan().full_elems() * SizeOf(gather_dtype()),
                        absl::StrCat(core_.name, " (gathered inputs)"))
                  : unsharded_;
  const bool is_hooked = hooked_ != nullptr && gathered_ == unsharded_;
  std::vector<Storage::Part> parts;
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    GroupMember& member = core_.members[static_cast<size_t>(i)];
    const Shape& shape = core_.plan.parameter(i).full_shape;
    const Tensor view =
        is_hooked ? hooked_->Gathered(i, gathered_)[0]
                  : MakeView(unsharded_, core_.plan.full_offset(i), shape,
                             ContiguousStrides(shape), core_.param_dtype);
    member.unsharded = member.form->Wrap(view);
    parts.push_back({view.storage_offset() * SizeOf(view.dtype()),
                     absl::StrCat("parameter ", core_.plan.parameter(i).name)});
  }
  // Hooks with tensors of several dtypes order them by size.
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return a.begin_bytes < b.begin_bytes;
  });
  unsharded_->set_parts(std::move(parts));
}

void ParamGroup::MoveTo(ParamState next) {
  state_ = Transition(core_.name, state_, next);
}

void ParamGroup::Lease(Storage& storage, Stream& stream) {
  if (storage.attached()) {  // Kept by set_keep_unsharded.
    stream.Wait(kept_event_);
    return;
  }
  RankContext& context = core_.comm->context();
  storage.Attach(context.allocator().Allocate(
                     storage.bytes(), MemoryClass::kGatheredParameter, stream),
                 context.device());
}

std::shared_ptr<Storage> ParamGroup::AllGatherSource(Stream& gathering) {
  if (hooked_ == nullptr && core_.param_dtype == core_.shard_dtype &&
      !core_.offloaded) {
    return shards_;
  }
  Stream& stream = core_.offloaded ? core_.comm->to_device() : gathering;
  RankContext& context = core_.comm->context();
  auto source = std::make_shared<Storage>(
      context.allocator().Allocate(
          gather_plan().shard_elems(core_.shard_rank) * SizeOf(gather_dtype()),
          MemoryClass::kCommunication, stream),
      context.device());
  context.AddCopiedBytes(source->bytes());
  if (core_.offloaded) {
    core_.Log("copy_to_device", source->bytes());
    BeginSpan(stream, "copy_to_device", core_.name);
  }
  {
    StreamScope on_stream(stream);
    NoGrad no_grad;
    if (hooked_ != nullptr) {
      core_.Log("pre_all_gather", source->bytes());
      hooked_->PreAllGather(
          core_.shard_rank,
          [&](int i) { return core_.ShardOf(i, shards_, core_.shard_dtype); },
          source);
    } else {
      CopyInPlace(core_.ShardView(source, core_.param_dtype),
                  core_.ShardView(shards_, core_.shard_dtype));
    }
  }
  if (core_.offloaded) {
    EndSpan(stream, "copy_to_device", core_.name);
    gathering.Wait(stream.Record());
  }
  return source;
}

void ParamGroup::IssueAllGather(Communicator& comm, const GroupPlan& plan,
                                int rank, std::byte* source) {
  Collective gather{.kind = CollectiveKind::kAllGather,
                    .dtype = gather_dtype(),
                    .label = core_.name,
                    .about = core_.about};
  gather.send.push_back(plan.ShardSegments(source, rank));
  for (int r = 0; r < plan.num_shards(); ++r) {
    gather.recv.push_back(
        plan.FullSegments(gathered_->data(), gather_dtype(), r));
  }
  Stream& stream = core_.GatherStream();
  BeginSpan(stream, "all_gather", core_.name);
  core_.Issue(core_.custom->all_gather, "all_gather", comm, std::move(gather),
              stream);
  EndSpan(stream, "all_gather", core_.name);
}

void ParamGroup::Unshard() {
  bool replaced = false;
  for (const GroupMember& member : core_.members) {
    replaced = replaced || IsReplaced(member);
  }
  if (state_ != ParamState::kSharded) {
    CH_CHECK(!replaced && shards_->version() == unsharded_version_)
        << "FSDP group " << core_.name << " is " << Name(state_)
        << " and its shards were changed since: it would compute with old "
           "values; call ShardedModule::Reshard, or ResetIteration after an "
           "unfinished iteration";
    if (state_ != ParamState::kShardedPostForward) return;
  }
  if (replaced) AdoptReplacedData();
  CH_CHECK(shards_->attached())
      << "FSDP group " << core_.name << ": its parameters "
      << NamesOfParameters() << " have no memory yet; call Module::Materialize";
  Stream& stream = core_.GatherStream();
  if (hooked_ != nullptr && state_ == ParamState::kSharded) {
    StreamScope on_compute(core_.comm->compute());
    hooked_->Prepare();
  }
  OrderAllGather();
  Lease(*gathered_, stream);
  if (state_ == ParamState::kShardedPostForward) {
    stream.Wait(post_forward_event_);
    core_.Log("unshard_within", gathered_->bytes());
    IssueAllGather(*post_forward_comm_, *post_forward_plan_,
                   post_forward_comm_->rank(), post_forward_->data());
    post_forward_->block().UsedOn(stream);
    post_forward_ = nullptr;
  } else {
    const std::shared_ptr<Storage> source = AllGatherSource(stream);
    core_.Log("unshard", gathered_->bytes());
    IssueAllGather(*all_gather_comm_, gather_plan(), core_.shard_rank,
                   source->data());
    if (source != shards_) source->block().UsedOn(stream);
    if (unsharded_version_ != shards_->version()) unsharded_->BumpVersion();
    unsharded_version_ = shards_->version();
  }
  unsharded_event_ = stream.Record();
  MoveTo(ParamState::kUnsharding);
}

void ParamGroup::WaitForUnshard() {
  if (state_ != ParamState::kUnsharding) return;
  Stream& compute = core_.comm->compute();
  BeginSpan(compute, "wait", "unshard");
  compute.Wait(unsharded_event_);
  EndSpan(compute, "wait", "unshard");
  unsharded_event_ = Event();
  core_.Log("wait", 0);
  if (gathered_ != unsharded_) PostAllGather();
  MoveTo(ParamState::kUnsharded);
}

void ParamGroup::PostAllGather() {
  Stream& compute = core_.comm->compute();
  StreamScope on_compute(compute);
  const NoGrad no_grad;
  // The hooks write to another storage of the memory, because a write to
  // `unsharded_` would count as a change of tensors that backward saved.
  const auto written =
      std::make_shared<Storage>(unsharded_->bytes(), unsharded_->owner());
  const Device device = core_.comm->context().device();
  if (unsharded_->attached()) written->Attach(unsharded_->Detach(), device);
  Lease(*written, compute);
  core_.Log("post_all_gather", written->bytes());
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    const Shape& shape = core_.plan.parameter(i).full_shape;
    hooked_->PostAllGather(
        i, gathered_,
        MakeView(written, core_.plan.full_offset(i), shape,
                 ContiguousStrides(shape), core_.param_dtype));
  }
  unsharded_->Attach(written->Detach(), device);
  Block inputs = gathered_->Detach();
  inputs.UsedOn(compute);
}

void ParamGroup::ReleaseUnsharded() {
  if (keep_unsharded_) {
    kept_event_ = core_.comm->compute().Record();
    return;
  }
  Block block = unsharded_->Detach();
  block.UsedOn(core_.comm->compute());
}

void ParamGroup::Reshard() {
  if (state_ == ParamState::kSharded) return;
  if (state_ == ParamState::kShardedPostForward) {
    post_forward_ = nullptr;
  } else {
    // An unused gather must complete before its lease ends.
    WaitForUnshard();
    ReleaseUnsharded();
  }
  core_.Log("reshard", unsharded_->bytes());
  MoveTo(ParamState::kSharded);
}

void ParamGroup::ReshardAfterForward() {
  if (!post_forward_plan_.has_value() || state_ != ParamState::kUnsharded) {
    Reshard();
    return;
  }
  RankContext& context = core_.comm->context();
  Stream& compute = core_.comm->compute();
  const int rank = post_forward_comm_->rank();
  post_forward_ = std::make_shared<Storage>(
      context.allocator().Allocate(
          post_forward_plan_->shard_elems(rank) * SizeOf(gather_dtype()),
          MemoryClass::kGatheredParameter, compute),
      context.device());
  NoGrad no_grad;
  for (int i = 0; i < post_forward_plan_->num_parameters(); ++i) {
    const PlannedParameter& planned = post_forward_plan_->parameter(i);
    const Interval piece = planned.intervals[static_cast<size_t>(rank)];
    const Shape shape = post_forward_plan_->ShardShape(i, rank);
    const Tensor full = MakeView(
        gathered_, post_forward_plan_->full_offset(i), planned.full_shape,
        ContiguousStrides(planned.full_shape), gather_dtype());
    CopyInPlace(
        MakeView(post_forward_, post_forward_plan_->shard_offset(i, rank),
                 shape, ContiguousStrides(shape), gather_dtype()),
        Slice(full, planned.shard_dim, piece.begin, piece.end));
  }
  context.AddCopiedBytes(post_forward_->bytes());
  post_forward_event_ = compute.Record();
  ReleaseUnsharded();
  core_.Log("reshard_post_forward", post_forward_->bytes());
  MoveTo(ParamState::kShardedPostForward);
}

void ParamGroup::set_keep_unsharded(bool keep) {
  keep_unsharded_ = keep;
  const bool sharded = state_ == ParamState::kSharded ||
                       state_ == ParamState::kShardedPostForward;
  if (keep || !sharded || !unsharded_->attached()) return;
  Block block = unsharded_->Detach();
  block.UsedOn(core_.comm->compute());
}

std::string ParamGroup::Describe(const std::string& note,
                                 PlanDetail detail) const {
  std::string text = absl::StrCat(
      core_.name, ": ", crosshatch::Name(core_.shard_dtype),
      " shards, gathered as ", crosshatch::Name(core_.param_dtype));
  if (gradients_.trainable()) {
    absl::StrAppend(&text, ", gradients reduced as ",
                    crosshatch::Name(core_.reduce_dtype));
  } else {
    absl::StrAppend(&text, ", frozen");
  }
  absl::StrAppend(&text, ", over ", all_gather_comm_->size(), " ranks");
  if (core_.replicated()) {
    absl::StrAppend(&text, ", replicated ", core_.mesh.size(0), " times");
  }
  absl::StrAppend(&text, "; ", note);
  const std::string pieces = core_.plan.DescribePieces();
  if (!pieces.empty()) absl::StrAppend(&text, "; ", pieces);
  if (!separation_reason_.empty())
    absl::StrAppend(&text, "; ", separation_reason_);
  text.push_back('\n');
  for (int i = 0; i < core_.plan.num_parameters(); ++i) {
    absl::StrAppend(&text, core_.plan.ToString(i, detail));
    const std::string& of_parameter = notes_[static_cast<size_t>(i)];
    if (!of_parameter.empty()) absl::StrAppend(&text, ", ", of_parameter);
    text.push_back('\n');
  }
  return text;
}

}  // namespace crosshatch::fsdp
