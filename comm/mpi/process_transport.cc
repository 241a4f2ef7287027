// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/process_transport.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/engine_span.h"
#include "crosshatch/comm/reduce_segments.h"
#include "crosshatch/comm/segment_cursor.h"

namespace crosshatch::internal {
namespace {

/// Data of this size or less come with the note; with a note of usual length
/// that is what shared memory takes as one message without asking back.
constexpr int64_t kBytesWithNote = 3072;
/// What a member sends at most in an all-reduce in which all add all.
constexpr int64_t kMaxDirectBytes = int64_t{1} << 16;
/// Pieces of data that are moved, and of data that are summed: these lie in
/// scratch memory, one a rank, and are to be in the cache when they are added.
constexpr int64_t kMovedPieceBytes = int64_t{1} << 20;
constexpr int64_t kSummedPieceBytes = int64_t{1} << 18;

using Cursors = absl::InlinedVector<SegmentCursor, 8>;

/// One run of memory as a list.
Segment OneRun(const void* data, int64_t elems) {
  // Read only.
  return {.data = const_cast<void*>(data), .run_elems = elems};
}

}  // namespace

ProcessTransport::ProcessTransport(std::shared_ptr<ProcessJob> job,
                                   RankContext& context, const GroupKey& key,
                                   int member, int64_t max_message_bytes,
                                   DataPlanes* planes)
    : job_(std::move(job)),
      context_(context),
      kernels_(context.kernels()),
      group_(job_->Connect(key, member)),
      description_(Describe(key)),
      max_message_bytes_(max_message_bytes),
      planes_(planes),
      sends_(static_cast<size_t>(size())),
      receives_(static_cast<size_t>(size())),
      fingerprints_(static_cast<size_t>(size())),
      pointers_(static_cast<size_t>(size())),
      transfer_(*job_, *group_) {
  for (Outgoing* outgoing : {&to_meet_, &to_gather_}) {
    outgoing->notes.resize(static_cast<size_t>(size()));
    outgoing->requests.resize(static_cast<size_t>(size()));
  }
}

void ProcessTransport::Bind(Stream& stream) { queue_ = &stream; }

absl::Status ProcessTransport::Run(const Collective& collective,
                                   const Fingerprint& fingerprint,
                                   KernelContext&) {
  if (planes_ != nullptr) return RunByPlane(collective, fingerprint);
  PlanParts(collective);
  if (size() == 1) return Move(0, collective);
  const int64_t meeting = next_meeting_++;
  CH_RETURN_IF_ERROR(Meet(meeting, collective, fingerprint));
  CH_RETURN_IF_ERROR(CheckMembers(meeting, fingerprint));
  CH_RETURN_IF_ERROR(Move(meeting, collective));
  ProcessJob::Lock lock = job_->TakeLock();
  group_->collectives.Close(meeting);
  group_->meeting_since.reset();
  return absl::OkStatus();
}

absl::Status ProcessTransport::RunByPlane(const Collective& collective,
                                          const Fingerprint& fingerprint) {
  bool same_shape = false;
  if (size() > 1) {
    const int64_t meeting = next_meeting_++;
    shape_ = plane_ == nullptr ? 0 : plane_->ShapeOf(collective);
    CH_RETURN_IF_ERROR(Meet(meeting, collective, fingerprint));
    CH_RETURN_IF_ERROR(CheckMembers(meeting, fingerprint));
    same_shape = HaveSameShape(meeting);
    ProcessJob::Lock lock = job_->TakeLock();
    group_->collectives.Close(meeting);
  }
  const absl::Status issued =
      IssueToPlane(collective, fingerprint.sequence, same_shape);
  if (!issued.ok()) {
    job_->FailGroup(*group_, issued);
    return job_->failure();
  }
  ProcessJob::Lock lock = job_->TakeLock();
  group_->meeting_since.reset();
  return absl::OkStatus();
}

absl::Status ProcessTransport::IssueToPlane(const Collective& collective,
                                            int64_t sequence, bool same_shape) {
  if (plane_ == nullptr) {
    CH_ASSIGN_OR_RETURN(plane_, Connect());
    job_->AddPlane(group_, plane_);
  }
  if (!planes_->moves_host_memory()) {
    return plane_->Issue(collective, sequence, same_shape, *queue_);
  }
  const auto set_since = [this](std::optional<absl::Duration> since) {
    ProcessJob::Lock lock = job_->TakeLock();
    if (since.has_value()) since = job_->RunningTime();
    group_->issuing_since = since;
  };
  set_since(absl::ZeroDuration());
  const absl::Status issued =
      plane_->Issue(collective, sequence, same_shape, *queue_);
  set_since(std::nullopt);
  return issued;
}

absl::StatusOr<std::shared_ptr<DataPlane>> ProcessTransport::Connect() {
  CH_ASSIGN_OR_RETURN(
      std::unique_ptr<DataPlane> plane,
      planes_->Connect(
          group_->key, me(), context_, job_->timeout(),
          [this](const std::string& blob) { return GatherInOrder(blob); }));
  return plane;
}

absl::StatusOr<std::vector<std::string>> ProcessTransport::GatherInOrder(
    const std::string& blob) {
  if (size() == 1) return std::vector<std::string>{blob};
  const int64_t meeting = next_meeting_++;
  Fingerprint what;
  what.label = "the connection of its data plane";
  std::string own;
  StartNote({.kind = NoteKind::kMeet, .group = group_->id, .meeting = meeting},
            own);
  AppendFingerprint(what, own);
  const auto bytes = static_cast<int64_t>(blob.size());
  std::memcpy(AppendData(bytes, own), blob.data(), blob.size());
  for (int r = 0; r < size(); ++r) {
    if (r != me()) to_meet_.notes[r] = own;
  }
  CH_RETURN_IF_ERROR(
      ExchangeNotes(group_->collectives, meeting, std::move(own), nullptr));
  std::vector<std::string> blobs;
  for (int r = 0; r < size(); ++r) {
    const NoteHeader& header = group_->collectives.header(r, meeting);
    blobs.push_back(group_->collectives.note(r, meeting)
                        .substr(static_cast<size_t>(header.data_at),
                                static_cast<size_t>(header.data_bytes)));
  }
  ProcessJob::Lock lock = job_->TakeLock();
  group_->collectives.Close(meeting);
  return blobs;
}

bool ProcessTransport::HaveSameShape(int64_t meeting) const {
  for (int r = 0; r < size(); ++r) {
    if (r == me()) continue;
    uint64_t other = 0;
    const NoteHeader& header = group_->collectives.header(r, meeting);
    CH_CHECK_EQ(header.data_bytes, int64_t{sizeof(other)}) << description_;
    std::memcpy(&other,
                group_->collectives.note(r, meeting).data() + header.data_at,
                sizeof(other));
    if (other != shape_) return false;
  }
  return shape_ != 0;
}

bool ProcessTransport::IsDirect(const Collective& collective) const {
  const int64_t bytes =
      NumElements(collective.recv[0]) * SizeOf(collective.dtype);
  return bytes <= kBytesWithNote && bytes * (size() - 1) <= kMaxDirectBytes;
}

SpanRow ProcessTransport::Spans() const {
  EventSink* const sink = planes_ == nullptr ? context_.sink() : nullptr;
  if (sink == nullptr || !sink->wants_spans()) return {};
  return {.sink = sink, .name = &queue_->name()};
}

void ProcessTransport::PlanParts(const Collective& c) {
  const int n = size();
  const auto whole = [](const SegmentList& list) {
    return Part{list, 0, NumElements(list)};
  };
  for (int r = 0; r < n; ++r) {
    Part& send = sends_[r];
    Part& receive = receives_[r];
    send = receive = {};
    switch (c.kind) {
      case CollectiveKind::kAllGather:
        send = whole(c.send[0]);
        receive = whole(c.recv[r]);
        break;
      case CollectiveKind::kReduceScatter:
        send = whole(c.send[r]);
        receive = whole(c.recv[0]);
        break;
      case CollectiveKind::kAllReduce:
        send = whole(c.send[0]);
        receive = whole(c.recv[0]);
        // Small ones are added by all members, which saves a round.
        if (!IsDirect(c)) {
          const int64_t count = send.elems;
          send.begin = PieceBegin(count, n, r);
          send.elems = PieceBegin(count, n, r + 1) - send.begin;
          receive.begin = PieceBegin(count, n, me());
          receive.elems = PieceBegin(count, n, me() + 1) - receive.begin;
        }
        break;
      case CollectiveKind::kAllToAll:
        send = whole(c.send[r]);
        receive = whole(c.recv[r]);
        break;
      case CollectiveKind::kBroadcast:
        if (me() == c.root) {
          send = whole(c.send[0]);
        } else if (r == c.root) {
          receive = whole(c.recv[0]);
        }
        break;
      case CollectiveKind::kBarrier:
        break;
    }
  }
}

absl::Status ProcessTransport::Meet(int64_t meeting,
                                    const Collective& collective,
                                    const Fingerprint& fingerprint) {
  tag_ = job_->NextTag();
  std::string own;
  StartNote({.kind = NoteKind::kMeet,
             .tag = tag_,
             .group = group_->id,
             .meeting = meeting},
            own);
  {
    const EngineSpan comparing(Spans(), "comparing");
    AppendFingerprint(fingerprint, own);
  }
  const int64_t elem_bytes = SizeOf(collective.dtype);
  for (int r = 0; r < size(); ++r) {
    if (r == me()) continue;
    std::string& note = to_meet_.notes[r];
    note = own;
    if (planes_ != nullptr) {
      std::memcpy(AppendData(sizeof(shape_), note), &shape_, sizeof(shape_));
      continue;
    }
    const Part& part = sends_[r];
    const int64_t bytes = part.elems * elem_bytes;
    if (bytes == 0 || bytes > kBytesWithNote) continue;
    const Segment to = OneRun(AppendData(bytes, note), part.elems);
    CopySegments(SegmentCursor(part.list, elem_bytes, part.begin),
                 SegmentCursor({&to, 1}, elem_bytes), part.elems, elem_bytes);
  }
  return ExchangeNotes(group_->collectives, meeting, std::move(own), nullptr);
}

absl::Status ProcessTransport::ExchangeNotes(Meetings& meetings,
                                             int64_t meeting, std::string own,
                                             const std::string* gathering) {
  const std::vector<int>& ranks = group_->key.world_ranks;
  Outgoing& outgoing = gathering == nullptr ? to_meet_ : to_gather_;
  ProcessJob::Lock lock = job_->TakeLock();
  if (job_->failed()) {
    lock.unlock();
    return job_->failure();
  }
  if (gathering == nullptr) {
    job_->BeginMeeting(*group_, meeting);
  } else {
    job_->BeginGathering(*group_, *gathering);
  }
  meetings.File(me(), HeaderOf(own), own);
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    if (job_->lost(ranks[r]) || !job_->link_error().ok()) continue;
    job_->NoteLinkError(job_->link().SendNote(ranks[r], outgoing.notes[r],
                                              outgoing.requests[r]));
  }
  lock.unlock();
  for (int r = 0; r < size(); ++r) {
    if (r != me()) job_->link().Ring(ranks[r]);
  }

  int finished = -1;
  bool late = false;
  lock.lock();
  const absl::Duration until = job_->RunningTime() + job_->timeout();
  job_->Wait(lock, [&] {
    if (job_->failed()) return true;
    bool sent = true;
    for (LinkRequest& request : outgoing.requests) {
      if (!request.pending || !job_->link_error().ok()) continue;
      job_->NoteLinkError(job_->link().Test(request));
      sent = sent && !request.pending;
    }
    if (meetings.AllCame(meeting)) {
      if (sent) return true;
    } else {
      for (int r = 0; r < size() && finished < 0; ++r) {
        if (!meetings.Came(r, meeting) && job_->finished(ranks[r])) {
          finished = ranks[r];
        }
      }
    }
    late = job_->RunningTime() > until;
    return late || finished >= 0 || job_->failed();
  });
  group_->gathering = nullptr;
  absl::Status failure;
  if (!job_->failed()) {
    if (meetings.AllCame(meeting) && !late) return absl::OkStatus();
    const std::string members = DescribeMembers(meetings, meeting, gathering);
    failure = late ? absl::DeadlineExceededError(absl::StrCat(
                         description_, " timed out after ",
                         absl::FormatDuration(job_->timeout()), ": ", members))
                   : absl::FailedPreconditionError(absl::StrCat(
                         description_, " can never go on: ", members, " (rank ",
                         finished, " has finished)"));
  }
  for (int r = 0; r < size(); ++r) {
    if (!outgoing.requests[r].pending) continue;
    job_->Adopt(std::move(outgoing.notes[r]), outgoing.requests[r]);
    outgoing.requests[r] = {};
  }
  lock.unlock();
  if (!failure.ok()) job_->FailGroup(*group_, failure);
  if (gathering == nullptr) {
    lock.lock();
    job_->LeaveMeetings(*group_, meeting);
    lock.unlock();
  }
  return job_->failure();
}

std::string ProcessTransport::DescribeMembers(
    const Meetings& meetings, int64_t meeting,
    const std::string* gathering) const {
  std::string came, missing;
  for (int r = 0; r < size(); ++r) {
    const int rank = group_->key.world_ranks[r];
    if (!meetings.Came(r, meeting)) {
      absl::StrAppend(&missing, ", rank ", rank, " did not come");
      continue;
    }
    std::string what;
    if (gathering != nullptr) {
      what = *gathering;
    } else {
      Fingerprint fingerprint;
      ReadFingerprint(meetings.note(r, meeting), fingerprint);
      what = Describe(fingerprint);
    }
    absl::StrAppend(&came, came.empty() ? "" : ", ", "rank ", rank, " came to ",
                    what);
  }
  return came + missing;
}

absl::Status ProcessTransport::CheckMembers(int64_t meeting,
                                            const Fingerprint& fingerprint) {
  const EngineSpan comparing(Spans(), "comparing");
  for (int r = 0; r < size(); ++r) {
    pointers_[r] = r == me() ? &fingerprint : &fingerprints_[r];
    if (r == me()) continue;
    ReadFingerprint(group_->collectives.note(r, meeting), fingerprints_[r]);
  }
  const absl::Status agreement =
      CheckAgreement(description_, group_->key.world_ranks, pointers_);
  if (agreement.ok()) return absl::OkStatus();
  job_->FailGroup(*group_, agreement);
  return job_->failure();
}

absl::Status ProcessTransport::Move(int64_t meeting,
                                    const Collective& collective) {
  if (collective.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  if (!IsReduction(collective.kind)) return MoveLists(meeting, collective);
  CH_RETURN_IF_ERROR(MoveAndReduce(meeting, collective));
  if (collective.kind == CollectiveKind::kReduceScatter ||
      IsDirect(collective) || size() == 1) {
    return absl::OkStatus();
  }
  return GatherPieces(meeting, collective);
}

int64_t ProcessTransport::PieceElems(const Collective& collective) const {
  const int64_t bytes =
      IsReduction(collective.kind) ? kSummedPieceBytes : kMovedPieceBytes;
  return std::min(bytes, max_message_bytes_) / SizeOf(collective.dtype);
}

absl::Status ProcessTransport::MoveLists(int64_t meeting,
                                         const Collective& collective) {
  const int64_t elem_bytes = SizeOf(collective.dtype);
  transfer_.Begin(elem_bytes, PieceElems(collective), Spans());
  // Each rank begins after itself, so that not all wait for one peer.
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    const Part& part = receives_[r];
    const NoteHeader& header = group_->collectives.header(r, meeting);
    if (header.data_bytes == 0) {
      transfer_.AddReceive(r, header.tag, part.list, part.begin, part.elems);
      continue;
    }
    CH_CHECK_EQ(header.data_bytes, part.elems * elem_bytes) << description_;
    const Segment from =
        OneRun(group_->collectives.note(r, meeting).data() + header.data_at,
               part.elems);
    CopySegments(SegmentCursor({&from, 1}, elem_bytes),
                 SegmentCursor(part.list, elem_bytes, part.begin), part.elems,
                 elem_bytes);
  }
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    const Part& part = sends_[r];
    if (part.elems * elem_bytes <= kBytesWithNote) continue;
    transfer_.AddSend(r, tag_, part.list, part.begin, part.elems);
  }
  return transfer_.Run(
      meeting, [&] { CopyOwn(collective); },
      [](absl::Span<const std::byte* const>, int64_t, int64_t) {});
}

void ProcessTransport::CopyOwn(const Collective& c) {
  const SegmentList* from = nullptr;
  const SegmentList* to = nullptr;
  switch (c.kind) {
    case CollectiveKind::kAllGather:
      from = &c.send[0];
      to = &c.recv[me()];
      break;
    case CollectiveKind::kAllToAll:
      from = &c.send[me()];
      to = &c.recv[me()];
      break;
    case CollectiveKind::kBroadcast:
      if (me() != c.root || c.recv.empty()) return;
      from = &c.send[0];
      to = &c.recv[0];
      break;
    default:
      return;
  }
  const int64_t elem_bytes = SizeOf(c.dtype);
  CopySegments(SegmentCursor(*from, elem_bytes), SegmentCursor(*to, elem_bytes),
               NumElements(*to), elem_bytes);
}

absl::Status ProcessTransport::MoveAndReduce(int64_t meeting,
                                             const Collective& collective) {
  const int64_t elem_bytes = SizeOf(collective.dtype);
  const Part& own = sends_[me()];
  SegmentCursor from(own.list, elem_bytes, own.begin);
  SegmentCursor to(receives_[me()].list, elem_bytes, receives_[me()].begin);
  // `peers` begin after this rank and go around.
  const auto reduce = [&](absl::Span<const std::byte* const> peers, int64_t,
                          int64_t elems) {
    absl::InlinedVector<Segment, 8> pieces(static_cast<size_t>(size()));
    Cursors sources;
    for (int r = 0; r < size(); ++r) {
      if (r == me()) {
        sources.push_back(from);
        continue;
      }
      const int i = (r - me() + size()) % size() - 1;
      pieces[r] = OneRun(peers[i], elems);
      sources.emplace_back(absl::MakeConstSpan(&pieces[r], 1), elem_bytes);
    }
    // No pool: the ranks are the parallelism, and compute needs the pools.
    KernelContext context;
    ReduceSegments(collective, absl::MakeSpan(sources), to, elems, kernels_,
                   context);
    from.Skip(elems);
    to.Skip(elems);
  };
  const int64_t elems = receives_[me()].elems;
  transfer_.Begin(elem_bytes, PieceElems(collective), Spans());
  absl::InlinedVector<const std::byte*, 8> with_notes;
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    const NoteHeader& header = group_->collectives.header(r, meeting);
    if (header.data_bytes == 0) {
      transfer_.AddToScratch(r, header.tag, elems);
      continue;
    }
    CH_CHECK_EQ(header.data_bytes, elems * elem_bytes) << description_;
    with_notes.push_back(reinterpret_cast<const std::byte*>(
        group_->collectives.note(r, meeting).data() + header.data_at));
  }
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    const Part& part = sends_[r];
    if (part.elems * elem_bytes <= kBytesWithNote) continue;
    transfer_.AddSend(r, tag_, part.list, part.begin, part.elems);
  }
  // All members give as many elements, so either all come with notes or none.
  const bool by_notes = elems > 0 && (size() == 1 || !with_notes.empty());
  return transfer_.Run(
      meeting,
      [&] {
        if (by_notes) reduce(with_notes, 0, elems);
      },
      reduce);
}

absl::Status ProcessTransport::GatherPieces(int64_t meeting,
                                            const Collective& collective) {
  const int n = size();
  const SegmentList& list = collective.recv[0];
  const int64_t count = NumElements(list);
  const int64_t begin = PieceBegin(count, n, me());
  transfer_.Begin(
      SizeOf(collective.dtype),
      std::min(kMovedPieceBytes, max_message_bytes_) / SizeOf(collective.dtype),
      Spans());
  for (int i = 1; i < n; ++i) {
    const int r = (me() + i) % n;
    const int64_t start = PieceBegin(count, n, r);
    transfer_.AddReceive(r, group_->collectives.header(r, meeting).tag + 1,
                         list, start, PieceBegin(count, n, r + 1) - start);
  }
  for (int i = 1; i < n; ++i) {
    transfer_.AddSend((me() + i) % n, tag_ + 1, list, begin,
                      PieceBegin(count, n, me() + 1) - begin);
  }
  return transfer_.Run(
      meeting, [] {},
      [](absl::Span<const std::byte* const>, int64_t, int64_t) {});
}

absl::StatusOr<std::vector<std::string>> ProcessTransport::Gather(
    std::string blob, const std::string& what) {
  if (size() == 1) {
    const absl::Status failure = job_->failure();
    if (!failure.ok()) return failure;
    return std::vector<std::string>{std::move(blob)};
  }
  const int64_t meeting = next_gathering_++;
  std::string own;
  StartNote(
      {.kind = NoteKind::kGather, .group = group_->id, .meeting = meeting},
      own);
  own += blob;
  for (int r = 0; r < size(); ++r) {
    if (r != me()) to_gather_.notes[r] = own;
  }
  Meetings& meetings = group_->gathers;
  CH_RETURN_IF_ERROR(ExchangeNotes(meetings, meeting, std::move(own), &what));
  std::vector<std::string> blobs;
  blobs.reserve(static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    blobs.push_back(meetings.note(r, meeting).substr(sizeof(NoteHeader)));
  }
  ProcessJob::Lock lock = job_->TakeLock();
  meetings.Close(meeting);
  return blobs;
}

void ProcessTransport::Fail(const absl::Status& failure) {
  job_->FailGroup(*group_, failure);
}

}  // namespace crosshatch::internal
