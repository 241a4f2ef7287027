// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/collective_check.h"
#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/span.h"
#include "crosshatch/tensor/step_capture.h"

namespace crosshatch {
namespace {

SegmentList Contiguous(const void* data, int64_t count) {
  // Engines write to recv lists only.
  return {Segment{.data = const_cast<void*>(data), .run_elems = count}};
}

SegmentList Piece(const void* data, int64_t index, int64_t count, DType dtype) {
  const char* begin = static_cast<const char*>(data);
  if (begin != nullptr) begin += index * count * SizeOf(dtype);
  return Contiguous(begin, count);
}

}  // namespace

Communicator::Communicator(GroupKey key, int member, RankContext& context,
                           std::unique_ptr<ControlGroup> control,
                           DataPlanes& planes, absl::Duration timeout)
    : key_(std::move(key)),
      member_(member),
      context_(context),
      control_(std::move(control)),
      planes_(planes),
      timeout_(timeout),
      fingerprint_(std::make_unique<Fingerprint>()) {}

Communicator::~Communicator() = default;

std::string Communicator::Describe() const {
  return ::crosshatch::Describe(key_);
}

absl::Status Communicator::Issue(Collective collective, Stream& stream) {
  CheckThread();
  if (context_.poisoned()) {
    Abort(context_.status());
    return absl::OkStatus();
  }
  CH_RETURN_IF_ERROR(
      CheckCollective(collective, key_, member_, context_.device().is_meta()));
  BindTo(stream);
  Count(collective);
  if (context_.capture() != nullptr) Capture(collective);
  // The duration includes the wait for later members.
  const std::string name =
      context_.sink() == nullptr
          ? ""
          : absl::StrCat(Name(collective.kind), " ", key_.name);
  BeginSpan(stream, "collective", name);
  stream.Launch([this, collective = std::move(collective),
                 sequence = next_sequence_++](KernelContext&) {
    Run(collective, sequence);
  });
  EndSpan(stream, "collective", name);
  return absl::OkStatus();
}

void Communicator::Capture(const Collective& collective) {
  if (size() > 1 && !planes_.can_be_captured()) {
    context_.BreakCapture(absl::StrCat(
        "a collective of ", Describe(),
        ", which connects ranks by the host: only NCCL's are captured"));
    return;
  }
  StepCapture& capture = *context_.capture();
  capture.AddToIdentity(absl::StrCat(Name(collective.kind), " of ", key_.name,
                                     " ", collective.label, "\n"));
  capture.OnReplay([this, kind = collective.kind,
                    bytes = BytesReceived(collective, member_, size())] {
    CountBytes(kind, bytes);
  });
}

void Communicator::Run(const Collective& collective, int64_t sequence) {
  if (context_.poisoned()) {
    // Peers may be on their way to this collective.
    Abort(context_.status());
    return;
  }
  const absl::Status status = AgreeAndIssue(collective, sequence);
  if (!status.ok()) context_.Poison(status);
}

absl::Status Communicator::AgreeAndIssue(const Collective& collective,
                                         int64_t sequence) {
  if (plane_ == nullptr && planes_.connects_alone()) {
    CH_RETURN_IF_ERROR(Connect());
  }
  fingerprint_->Assign(collective, sequence);
  CH_RETURN_IF_ERROR(control_->Agree(*fingerprint_, [&](PayloadRoom room) {
    if (plane_ != nullptr) plane_->Offer(collective, room);
  }));
  absl::Status issued;
  if (plane_ == nullptr) issued = Connect();
  if (issued.ok()) {
    issued = plane_->Issue(collective, sequence, *control_, *stream_);
  }
  if (!issued.ok()) return control_->Fail(issued);
  control_->Done();
  return absl::OkStatus();
}

absl::Status Communicator::Connect() {
  CH_ASSIGN_OR_RETURN(
      plane_, planes_.Connect(
                  key_, member_, context_, timeout_, [this](std::string blob) {
                    return control_->Gather(GatherOrder::kOfStream,
                                            std::move(blob),
                                            "the connection of its data plane");
                  }));
  if (!planes_.connects_alone()) {
    control_->Watch(plane_, planes_.moves_host_memory());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Communicator::Exchange(
    const std::string& blob, const std::string& label) {
  CheckThread();
  if (context_.poisoned()) {
    Abort(context_.status());
    return context_.status();
  }
  absl::StatusOr<std::vector<std::string>> blobs = control_->Gather(
      GatherOrder::kOfRank, blob, absl::StrCat("exchange '", label, "'"));
  if (!blobs.ok()) context_.Poison(blobs.status());
  return blobs;
}

void Communicator::Abort(const absl::Status& error) {
  CH_CHECK(!error.ok()) << Describe() << " aborted without an error";
  (void)control_->Fail(absl::Status(
      error.code(),
      absl::StrCat(Describe(), " was aborted by rank ", world_ranks()[member_],
                   ": ", error.message())));
}

void Communicator::CheckThread() const {
  CH_CHECK(&RankContext::Current() == &context_)
      << Describe() << " of rank " << world_ranks()[member_]
      << " is used by a thread that is not the rank's, or after its run";
}

void Communicator::BindTo(Stream& stream) {
  if (stream_ == &stream) return;
  CH_CHECK(stream_ == nullptr)
      << Describe() << " is used on stream " << stream_->name()
      << " and then on stream " << stream.name();
  stream_ = &stream;
  control_->Bind(stream);
}

void Communicator::CountBytes(CollectiveKind kind, int64_t bytes) {
  CommunicatorStats::Count& count = stats_.by_kind[static_cast<int>(kind)];
  ++count.calls;
  count.bytes += bytes;
}

void Communicator::Count(const Collective& collective) {
  const int64_t bytes = BytesReceived(collective, member_, size());
  CountBytes(collective.kind, bytes);
  if (EventSink* sink = context_.sink(); sink != nullptr) {
    sink->Write({.kind = EventKind::kCollective,
                 .what = Name(collective.kind),
                 .subject = &collective.label,
                 .where = &key_.name,
                 .bytes = bytes});
  }
}

absl::Status AllGather(Communicator& comm, const void* send, void* recv,
                       int64_t count, DType dtype, Stream& stream,
                       std::string label) {
  Collective c{.kind = CollectiveKind::kAllGather,
               .dtype = dtype,
               .label = std::move(label)};
  c.send = {Contiguous(send, count)};
  for (int r = 0; r < comm.size(); ++r) {
    c.recv.push_back(Piece(recv, r, count, dtype));
  }
  return comm.Issue(std::move(c), stream);
}

absl::Status ReduceScatter(Communicator& comm, const void* send, void* recv,
                           int64_t count, DType dtype, ReduceOp op,
                           Stream& stream, std::string label) {
  Collective c{.kind = CollectiveKind::kReduceScatter,
               .dtype = dtype,
               .reduce_op = op,
               .label = std::move(label)};
  for (int r = 0; r < comm.size(); ++r) {
    c.send.push_back(Piece(send, r, count, dtype));
  }
  c.recv = {Contiguous(recv, count)};
  return comm.Issue(std::move(c), stream);
}

absl::Status AllReduce(Communicator& comm, void* data, int64_t count,
                       DType dtype, ReduceOp op, Stream& stream,
                       std::string label) {
  Collective c{.kind = CollectiveKind::kAllReduce,
               .dtype = dtype,
               .reduce_op = op,
               .label = std::move(label)};
  c.send = {Contiguous(data, count)};
  c.recv = {Contiguous(data, count)};
  return comm.Issue(std::move(c), stream);
}

absl::Status Broadcast(Communicator& comm, void* data, int64_t count,
                       DType dtype, int root, Stream& stream,
                       std::string label) {
  Collective c{.kind = CollectiveKind::kBroadcast,
               .dtype = dtype,
               .root = root,
               .label = std::move(label)};
  if (comm.rank() == root) {
    c.send = {Contiguous(data, count)};
  } else {
    c.recv = {Contiguous(data, count)};
  }
  return comm.Issue(std::move(c), stream);
}

absl::Status Barrier(Communicator& comm, Stream& stream, std::string label) {
  return comm.Issue(
      {.kind = CollectiveKind::kBarrier, .label = std::move(label)}, stream);
}

}  // namespace crosshatch
