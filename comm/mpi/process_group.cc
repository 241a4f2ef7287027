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
                           int member)
    : job_(std::move(job)),
      context_(context),
      group_(job_->Connect(key, member)),
      description_(Describe(key)),
      fingerprints_(static_cast<size_t>(size())),
      pointers_(static_cast<size_t>(size())) {
  for (Outgoing* outgoing : {&to_agree_, &to_gather_}) {
    outgoing->messages.resize(static_cast<size_t>(size()));
    outgoing->requests.resize(static_cast<size_t>(size()));
  }
}

void ProcessGroup::Bind(Stream& stream) {
  // Where a device's queue is bound, the rank's thread compares on its behalf.
  EventSink* const sink = context_.sink();
  if (sink == nullptr || !sink->wants_spans()) return;
  if (!context_.backend().host_addressable()) return;
  spans_ = {.sink = sink, .name = &stream.name()};
}

absl::Status ProcessGroup::Agree(const Fingerprint& fingerprint,
                                 absl::FunctionRef<void(PayloadRoom)> offer) {
  std::string own = StartAgreement(fingerprint);
  offer([this](int member, int64_t bytes) {
    return AppendPayload(bytes,
                         to_agree_.messages[static_cast<size_t>(member)]);
  });
  if (size() > 1) {
    CH_RETURN_IF_ERROR(
        ExchangeMessages(group_->collectives, round_, std::move(own), nullptr));
    CH_RETURN_IF_ERROR(CheckMembers(fingerprint));
  }
  if (!is_watched_) return absl::OkStatus();
  ProcessJob::Lock lock = job_->TakeLock();
  group_->issuing_since = job_->RunningTime();
  return absl::OkStatus();
}

std::string ProcessGroup::StartAgreement(const Fingerprint& fingerprint) {
  Close();
  ++round_;
  is_open_ = size() > 1;
  std::string own;
  StartMessage(
      {.kind = MessageKind::kAgree, .group = group_->id, .round = round_}, own);
  {
    const StreamSpan comparing(spans_, "comparing");
    AppendFingerprint(fingerprint, own);
  }
  for (int r = 0; r < size(); ++r) {
    if (r != me()) to_agree_.messages[static_cast<size_t>(r)] = own;
  }
  return own;
}

void ProcessGroup::Done() {
  ProcessJob::Lock lock = job_->TakeLock();
  if (is_open_) group_->collectives.Close(round_);
  is_open_ = false;
  group_->round_since.reset();
  group_->issuing_since.reset();
}

void ProcessGroup::Close() {
  if (!is_open_) return;
  ProcessJob::Lock lock = job_->TakeLock();
  group_->collectives.Close(round_);
  is_open_ = false;
}

absl::string_view ProcessGroup::Of(int member) const {
  if (!is_open_ || member == me()) return "";
  const MessageHeader& header = group_->collectives.header(member, round_);
  return absl::string_view(group_->collectives.message(member, round_))
      .substr(static_cast<size_t>(header.data_at),
              static_cast<size_t>(header.data_bytes));
}

absl::Status ProcessGroup::ExchangeMessages(Arrivals& rounds, int64_t round,
                                            std::string own,
                                            const std::string* gathering) {
  const std::vector<int>& ranks = group_->key.world_ranks;
  Outgoing& outgoing = gathering == nullptr ? to_agree_ : to_gather_;
  ProcessJob::Lock lock = job_->TakeLock();
  if (job_->failed()) {
    lock.unlock();
    return job_->failure();
  }
  if (gathering == nullptr) {
    job_->BeginRound(*group_, round);
  } else {
    job_->BeginGathering(*group_, *gathering);
  }
  rounds.File(me(), HeaderOf(own), own);
  for (int i = 1; i < size(); ++i) {
    const int r = (me() + i) % size();
    if (job_->lost(ranks[r]) || !job_->link_error().ok()) continue;
    job_->RecordLinkError(job_->link().SendControl(
        ranks[r], outgoing.messages[r], outgoing.requests[r]));
  }
  lock.unlock();
  for (int r = 0; r < size(); ++r) {
    if (r != me()) job_->link().Notify(ranks[r]);
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
      job_->RecordLinkError(job_->link().Test(request));
      sent = sent && !request.pending;
    }
    if (rounds.AllCame(round)) {
      if (sent) return true;
    } else {
      for (int r = 0; r < size() && finished < 0; ++r) {
        if (!rounds.Came(r, round) && job_->finished(ranks[r])) {
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
    if (rounds.AllCame(round) && !late) return absl::OkStatus();
    const std::string members = DescribeMembers(rounds, round, gathering);
    failure = late ? absl::DeadlineExceededError(absl::StrCat(
                         description_, " timed out after ",
                         absl::FormatDuration(job_->timeout()), ": ", members))
                   : absl::FailedPreconditionError(absl::StrCat(
                         description_, " can never go on: ", members, " (rank ",
                         finished, " has finished)"));
  }
  for (int r = 0; r < size(); ++r) {
    if (!outgoing.requests[r].pending) continue;
    job_->Adopt(std::move(outgoing.messages[r]), outgoing.requests[r]);
    outgoing.requests[r] = {};
  }
  lock.unlock();
  if (!failure.ok()) job_->FailGroup(*group_, failure);
  if (gathering == nullptr) {
    lock.lock();
    job_->LeaveRounds(*group_, round);
    lock.unlock();
  }
  return job_->failure();
}

std::string ProcessGroup::DescribeMembers(const Arrivals& rounds, int64_t round,
                                          const std::string* gathering) const {
  std::string came, missing;
  for (int r = 0; r < size(); ++r) {
    const int rank = group_->key.world_ranks[r];
    if (!rounds.Came(r, round)) {
      absl::StrAppend(&missing, ", rank ", rank, " did not come");
      continue;
    }
    std::string what;
    if (gathering != nullptr) {
      what = *gathering;
    } else {
      Fingerprint fingerprint;
      ReadFingerprint(rounds.message(r, round), fingerprint);
      what = Describe(fingerprint);
    }
    absl::StrAppend(&came, came.empty() ? "" : ", ", "rank ", rank, " came to ",
                    what);
  }
  return came + missing;
}

absl::Status ProcessGroup::CheckMembers(const Fingerprint& fingerprint) {
  const StreamSpan comparing(spans_, "comparing");
  for (int r = 0; r < size(); ++r) {
    pointers_[r] = r == me() ? &fingerprint : &fingerprints_[r];
    if (r == me()) continue;
    ReadFingerprint(group_->collectives.message(r, round_), fingerprints_[r]);
  }
  const absl::Status agreement =
      CheckAgreement(description_, group_->key.world_ranks, pointers_);
  if (agreement.ok()) return absl::OkStatus();
  job_->FailGroup(*group_, agreement);
  return job_->failure();
}

absl::StatusOr<std::vector<std::string>> ProcessGroup::GatherInOrder(
    const std::string& blob) {
  if (size() == 1) return std::vector<std::string>{blob};
  Fingerprint what;
  what.label = "the connection of its data plane";
  std::string own = StartAgreement(what);
  for (int r = 0; r < size(); ++r) {
    if (r == me()) continue;
    char* const data =
        AppendPayload(static_cast<int64_t>(blob.size()),
                      to_agree_.messages[static_cast<size_t>(r)]);
    std::memcpy(data, blob.data(), blob.size());
  }
  CH_RETURN_IF_ERROR(
      ExchangeMessages(group_->collectives, round_, std::move(own), nullptr));
  std::vector<std::string> blobs;
  for (int r = 0; r < size(); ++r) {
    blobs.push_back(r == me() ? blob : std::string(Of(r)));
  }
  Close();
  return blobs;
}

absl::StatusOr<std::vector<std::string>> ProcessGroup::Gather(
    std::string blob, const std::string& what) {
  if (size() == 1) {
    const absl::Status failure = job_->failure();
    if (!failure.ok()) return failure;
    return std::vector<std::string>{std::move(blob)};
  }
  const int64_t round = next_gathering_++;
  std::string own;
  StartMessage(
      {.kind = MessageKind::kGather, .group = group_->id, .round = round}, own);
  own += blob;
  for (int r = 0; r < size(); ++r) {
    if (r != me()) to_gather_.messages[r] = own;
  }
  Arrivals& rounds = group_->gathers;
  CH_RETURN_IF_ERROR(ExchangeMessages(rounds, round, std::move(own), &what));
  std::vector<std::string> blobs;
  blobs.reserve(static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    blobs.push_back(rounds.message(r, round).substr(sizeof(MessageHeader)));
  }
  ProcessJob::Lock lock = job_->TakeLock();
  rounds.Close(round);
  return blobs;
}

void ProcessGroup::Watch(std::shared_ptr<DataPlane> plane, bool blocks) {
  is_watched_ = blocks;
  job_->AddPlane(group_, std::move(plane));
}

absl::Status ProcessGroup::Fail(const absl::Status& failure) {
  job_->FailGroup(*group_, failure);
  return job_->failure();
}

}  // namespace crosshatch::internal
