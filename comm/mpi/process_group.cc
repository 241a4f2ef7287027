// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/process_group.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::internal {

ProcessGroup::ProcessGroup(std::shared_ptr<ProcessJob> job,
                           RankContext& context, const GroupKey& key,
                           int member, absl::Duration timeout)
    : job_(std::move(job)),
      context_(context),
      group_(job_->Connect(key, member, timeout)),
      description_(Describe(key)),
      agreements_(group_->agreements),
      gathers_(group_->gathers) {}

void ProcessGroup::Bind(Stream& stream) {
  // For a device's queue the rank's thread compares, not the stream.
  EventSink* const sink = context_.sink();
  if (sink == nullptr || !sink->wants_spans()) return;
  if (!context_.backend().host_addressable()) return;
  spans_ = {.sink = sink, .name = &stream.name()};
}

absl::Status ProcessGroup::Agree(const Fingerprint& fingerprint,
                                 absl::FunctionRef<void(PayloadRoom)> offer) {
  std::string own;
  {
    const StreamSpan comparing(spans_, "comparing");
    own = Start(agreements_, fingerprint);
  }
  offer([this](int member, int64_t bytes) {
    return AppendPayload(bytes,
                         agreements_.messages[static_cast<size_t>(member)]);
  });
  if (size() > 1) {
    CH_RETURN_IF_ERROR(Exchange(agreements_, std::move(own)));
    const StreamSpan comparing(spans_, "comparing");
    CH_RETURN_IF_ERROR(CheckMembers(agreements_, fingerprint));
  }
  if (!is_watched_) return absl::OkStatus();
  ProcessJob::Lock lock = job_->TakeLock();
  group_->issuing_since = job_->RunningTime();
  return absl::OkStatus();
}

void ProcessGroup::Done() {
  Close(agreements_);
  ProcessJob::Lock lock = job_->TakeLock();
  agreements_.since.reset();
  group_->issuing_since.reset();
}

std::string ProcessGroup::Start(Lane& lane, const Fingerprint& fingerprint) {
  Close(lane);
  std::string own;
  StartMessage(
      {.kind = lane.kind, .group = group_->id, .round = lane.round + 1}, own);
  AppendFingerprint(fingerprint, own);
  for (int r = 0; r < size(); ++r) {
    if (r != me()) lane.messages[static_cast<size_t>(r)] = own;
  }
  return own;
}

void ProcessGroup::Close(Lane& lane) {
  if (!lane.is_open) return;
  ProcessJob::Lock lock = job_->TakeLock();
  lane.arrivals.Close(lane.round);
  lane.is_open = false;
}

absl::string_view ProcessGroup::PayloadOf(const Lane& lane, int member) const {
  if (!lane.is_open || member == me()) return "";
  const Arrivals& arrivals = lane.arrivals;
  const MessageHeader& header = arrivals.header(member, lane.round);
  return absl::string_view(arrivals.message(member, lane.round))
      .substr(static_cast<size_t>(header.data_at),
              static_cast<size_t>(header.data_bytes));
}

absl::Status ProcessGroup::Exchange(Lane& lane, std::string own) {
  const std::vector<int>& ranks = group_->key.world_ranks;
  Arrivals& arrivals = lane.arrivals;
  ProcessJob::Lock lock = job_->TakeLock();
  if (job_->failed()) {
    lock.unlock();
    return job_->failure();
  }
  job_->BeginRound(lane);
  lane.is_open = true;
  arrivals.File(me(), HeaderOf(own), own);
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    job_->Post(ranks[r], lane.messages[r]);
  }

  int finished = -1;
  bool late = false;
  const absl::Duration until = job_->RunningTime() + group_->timeout;
  job_->Wait(lock, [&] {
    if (job_->failed()) return true;
    if (arrivals.AllCame(lane.round)) return true;
    for (int r = 0; r < size() && finished < 0; ++r) {
      if (!arrivals.Came(r, lane.round) && job_->finished(ranks[r])) {
        finished = ranks[r];
      }
    }
    late = job_->RunningTime() > until;
    return late || finished >= 0 || job_->failed();
  });
  absl::Status failure;
  if (!job_->failed()) {
    if (arrivals.AllCame(lane.round)) return absl::OkStatus();
    const std::string members = DescribeMembers(lane);
    failure = late ? absl::DeadlineExceededError(absl::StrCat(
                         description_, " timed out after ",
                         absl::FormatDuration(group_->timeout), ": ", members))
                   : absl::FailedPreconditionError(absl::StrCat(
                         description_, " can never go on: rank ", finished,
                         " has finished (", members, ")"));
  }
  lock.unlock();
  if (!failure.ok()) job_->FailGroup(*group_, failure);
  if (&lane == &agreements_) {
    lock.lock();
    job_->LeaveRounds(*group_, lane.round);
    lock.unlock();
  }
  return job_->failure();
}

std::string ProcessGroup::DescribeMembers(Lane& lane) const {
  const Arrivals& arrivals = lane.arrivals;
  for (int r = 0; r < size(); ++r) {
    lane.pointers[r] = nullptr;
    if (!arrivals.Came(r, lane.round)) continue;
    ReadFingerprint(arrivals.message(r, lane.round), lane.fingerprints[r]);
    lane.pointers[r] = &lane.fingerprints[r];
  }
  return DescribeArrivals(group_->key.world_ranks, lane.pointers);
}

absl::Status ProcessGroup::CheckMembers(Lane& lane,
                                        const Fingerprint& fingerprint) {
  for (int r = 0; r < size(); ++r) {
    lane.pointers[r] = r == me() ? &fingerprint : &lane.fingerprints[r];
    if (r == me()) continue;
    ReadFingerprint(lane.arrivals.message(r, lane.round), lane.fingerprints[r]);
  }
  const absl::Status agreement =
      CheckAgreement(description_, group_->key.world_ranks, lane.pointers);
  if (agreement.ok()) return absl::OkStatus();
  job_->FailGroup(*group_, agreement);
  return job_->failure();
}

absl::StatusOr<std::vector<std::string>> ProcessGroup::Gather(
    GatherOrder order, std::string blob, const std::string& what) {
  Lane& lane = order == GatherOrder::kOfRank ? gathers_ : agreements_;
  if (size() == 1) {
    const absl::Status failure = job_->failure();
    if (!failure.ok()) return failure;
    return std::vector<std::string>{blob};
  }
  const Fingerprint fingerprint = {.sequence = -1, .label = what};
  std::string own = Start(lane, fingerprint);
  for (int r = 0; r < size(); ++r) {
    if (r == me()) continue;
    char* const data = AppendPayload(static_cast<int64_t>(blob.size()),
                                     lane.messages[static_cast<size_t>(r)]);
    std::memcpy(data, blob.data(), blob.size());
  }
  absl::Status exchanged = Exchange(lane, std::move(own));
  if (exchanged.ok()) exchanged = CheckMembers(lane, fingerprint);
  std::vector<std::string> blobs;
  for (int r = 0; exchanged.ok() && r < size(); ++r) {
    blobs.push_back(r == me() ? blob : std::string(PayloadOf(lane, r)));
  }
  if (exchanged.ok()) Close(lane);
  ProcessJob::Lock lock = job_->TakeLock();
  lane.since.reset();
  if (!exchanged.ok()) return exchanged;
  return blobs;
}

void ProcessGroup::Watch(std::shared_ptr<DataPlane> plane, bool blocks) {
  is_watched_ = blocks;
  job_->AddPlane(group_, std::move(plane));
  if (!blocks) return;
  // The collective that connects the plane is agreed on already, and issued
  // next.
  ProcessJob::Lock lock = job_->TakeLock();
  group_->issuing_since = job_->RunningTime();
}

absl::Status ProcessGroup::Fail(const absl::Status& failure) {
  job_->FailGroup(*group_, failure);
  return job_->failure();
}

}  // namespace crosshatch::internal
