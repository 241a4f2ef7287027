// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/process_job.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/return_grace.h"

namespace crosshatch::internal {
namespace {

constexpr int64_t kStays = std::numeric_limits<int64_t>::max();
/// How long Activity waits for the lock. Threads that wait for messages release
/// it every few microseconds.
constexpr std::chrono::milliseconds kLockTimeout(500);

absl::flat_hash_map<int, int> MembersByRank(const GroupKey& key) {
  absl::flat_hash_map<int, int> members;
  for (int i = 0; i < key.size(); ++i) members[key.world_ranks[i]] = i;
  return members;
}

std::string For(JobGroup::Clock::time_point since) {
  return absl::StrCat(
      " for ", FormatWait(absl::FromChrono(JobGroup::Clock::now() - since)));
}

std::string FailureMessage(const FailureNotice& notice) {
  std::string message;
  StartMessage({.kind = MessageKind::kFailure}, message);
  AppendFailure(notice, message);
  return message;
}

}  // namespace

JobGroup::JobGroup(const GroupKey& group_key, int member,
                   absl::Duration group_timeout)
    : key(group_key),
      me(member),
      timeout(group_timeout),
      id(GroupId(key)),
      member_of(MembersByRank(key)),
      agreements(MessageKind::kAgree, key.world_ranks.size()),
      gathers(MessageKind::kGather, key.world_ranks.size()),
      left(static_cast<size_t>(key.size()), kStays) {}

ProcessJob::ProcessJob(Link& link, absl::Duration timeout,
                       FailureChannel* channel)
    : link_(link),
      rank_(link.rank()),
      size_(link.size()),
      timeout_(timeout),
      channel_(channel),
      poller_(link, [this] { return TakeMessages(); }),
      lost_(static_cast<size_t>(size_)),
      finished_(static_cast<size_t>(size_)),
      // Longer than two polls of the watchdog, on a busy machine, too.
      clock_(
          std::clamp(timeout / 4, absl::Milliseconds(100), absl::Seconds(2))) {}

ProcessJob::~ProcessJob() = default;

void ProcessJob::Enter(RankContext& context) {
  {
    Lock lock = TakeLock();
    context_ = &context;
    if (failed()) context.Poison(ErrorFor(*failure_, rank_));
  }
  if (channel_ == nullptr) return;
  channel_->SetActivity([this] { return Activity(); });
  channel_->OnFailure(
      [this](const FailureNotice& notice) { OnNotice(notice); });
}

void ProcessJob::Leave() {
  if (channel_ != nullptr) {
    channel_->OnFailure(nullptr);
    channel_->SetActivity(nullptr);
  }
  Lock lock = TakeLock();
  context_ = nullptr;
  for (const Moved& moved : planes_) moved.plane->LeaveMemory();
}

std::shared_ptr<JobGroup> ProcessJob::Connect(const GroupKey& key, int member,
                                              absl::Duration timeout) {
  auto group = std::make_shared<JobGroup>(key, member, timeout);
  Lock lock = TakeLock();
  const bool is_new = groups_.emplace(group->id, group).second;
  CH_CHECK(is_new) << Describe(key) << " is connected twice";
  const auto waiting = unclaimed_.find(group->id);
  if (waiting == unclaimed_.end()) return group;
  for (auto& [from, message] : waiting->second) {
    DeliverToGroup(from, HeaderOf(message), message);
  }
  unclaimed_.erase(waiting);
  return group;
}

std::shared_ptr<JobGroup> ProcessJob::GroupOf(const GroupKey& key) const {
  std::lock_guard lock(mutex_);
  return groups_.at(GroupId(key));
}

void ProcessJob::FailRank(const absl::Status& error) {
  Lock lock = TakeLock();
  FailLocked({.world_ranks = {rank_}, .error = error});
}

void ProcessJob::FailGroup(const JobGroup& group, const absl::Status& error) {
  Lock lock = TakeLock();
  FailLocked(
      {.world_ranks = group.key.world_ranks, .of_group = true, .error = error});
}

void ProcessJob::FailLocked(const FailureNotice& notice) {
  if (failed()) return;
  EndRank(notice);
  if (channel_ != nullptr) {
    channel_->Report(notice);
  } else if (rank_ == 0) {
    Decide(notice);
  } else {
    PostToOthers({0}, FailureMessage(notice));
  }
}

void ProcessJob::Decide(const FailureNotice& notice) {
  if (is_decided_) return;
  OnDecision(notice);
  const std::string message = FailureMessage(notice);
  for (int r = 1; r < size_; ++r) PostToOthers({r}, message);
}

void ProcessJob::OnDecision(const FailureNotice& notice) {
  if (is_decided_) return;
  is_decided_ = true;
  EndRank(notice);
}

void ProcessJob::EndRank(const FailureNotice& notice) {
  failure_ = notice;
  failure_->error = BoundedError(notice.error);
  if (!failed_at_.has_value()) failed_at_ = RunningTime();
  if (context_ != nullptr) context_->Poison(ErrorFor(notice, rank_));
  link_.Notify(rank_);
}

absl::Status ProcessJob::failure() const {
  std::lock_guard lock(mutex_);
  return failed() ? ErrorFor(*failure_, rank_) : absl::OkStatus();
}

absl::Duration ProcessJob::RunningTime() {
  return clock_.Look(Clock::now()).counted;
}

absl::Status ProcessJob::End() {
  Lock lock = TakeLock();
  function_returned_ = true;
  finished_[rank_] = true;
  // Sent to all ranks, because one may wait in a group that this rank never
  // entered.
  std::vector<int> others;
  for (int i = 1; i < size_; ++i) others.push_back((rank_ + i) % size_);
  const auto post_to_all = [&](MessageKind kind) {
    std::string message;
    StartMessage({.kind = kind, .round = failed() ? 1 : 0}, message);
    PostToOthers(others, message);
  };
  post_to_all(MessageKind::kFinished);
  // A sender's messages come in order. So from then on none of the job is in
  // flight, to a rank that has left or into the next job.
  const auto is_over = [&] {
    const bool fails = failed() || awaits_failure_;
    return posted_.empty() && (is_decided_ || !fails) &&
           std::find(finished_.begin(), finished_.end(), false) ==
               finished_.end();
  };
  Wait(lock, [&] {
    TestPosted();
    return is_over() || !link_error_.ok() ||
           std::find(lost_.begin(), lost_.end(), true) != lost_.end() ||
           (failed_at_.has_value() && RunningTime() - *failed_at_ > timeout_);
  });
  ended_together_ = is_over() && !is_given_up_;
  // Ranks that come later do not close the link either.
  if (!ended_together_) post_to_all(MessageKind::kGivenUp);
  if (awaits_failure_ && !failed()) {
    failure_ = {.world_ranks = {rank_},
                .error = absl::InternalError(absl::StrCat(
                    "another rank has failed, and why was not reported within ",
                    absl::FormatDuration(timeout_)))};
  }
  return failed() ? ResultOf(*failure_) : absl::OkStatus();
}

void ProcessJob::CheckIdle() {
  Lock lock = TakeLock();
  const auto other = std::find(finished_.begin(), finished_.end(), true);
  if (other == finished_.end() || function_returned_ ||
      failed_at_.has_value()) {
    return;
  }
  const bool waits =
      std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
        return entry.second->agreements.since.has_value() ||
               entry.second->gathers.since.has_value();
      });
  const absl::Status idle =
      idle_.Look(RunningTime(), timeout_, turns_, waits,
                 absl::StrCat("rank ", other - finished_.begin(),
                              ", which has finished, waits"));
  if (!idle.ok()) {
    FailLocked({.world_ranks = {rank_}, .error = idle});
  }
}

bool ProcessJob::ended_together() const {
  std::lock_guard lock(mutex_);
  return ended_together_;
}

void ProcessJob::AddPlane(std::shared_ptr<const JobGroup> group,
                          std::shared_ptr<DataPlane> plane) {
  Lock lock = TakeLock();
  planes_.push_back({std::move(group), std::move(plane)});
}

void ProcessJob::WatchPlanes() {
  Lock lock = TakeLock();
  const std::vector<Moved> planes = planes_;
  bool has_failed = failed();
  std::shared_ptr<const JobGroup> late;
  std::string what;
  for (const Moved& moved : planes) {
    const JobGroup& group = *moved.group;
    if (!group.issuing_since.has_value() ||
        RunningTime() - *group.issuing_since <= group.timeout) {
      continue;
    }
    late = moved.group;
    // A group of one rank needs no agreement.
    what = group.agreements.round < 0
               ? "a collective"
               : DescribeMessage(group.agreements.arrivals.message(
                     group.me, group.agreements.round));
  }
  lock.unlock();
  if (late != nullptr && !has_failed) {
    FailGroup(*late, absl::DeadlineExceededError(absl::StrCat(
                         Describe(late->key), " timed out after ",
                         absl::FormatDuration(late->timeout), ": on rank ",
                         rank_, " the data of ", what, " are not in place")));
    has_failed = true;
  }
  for (const Moved& moved : planes) {
    if (has_failed) break;
    const absl::Status state = moved.plane->Poll();
    if (state.ok()) continue;
    FailGroup(*moved.group, state);
    has_failed = true;
  }
  if (!has_failed) return;
  // Releases queues that wait for a peer's part, and the rank's thread.
  for (const Moved& moved : planes) moved.plane->Abort();
}

void ProcessJob::Watch() {
  WatchPlanes();
  CheckIdle();
  Lock lock = TakeLock();
  RunningTime();
  poller_.LookOnce();
  if (channel_ != nullptr) return;
  if (function_returned_ || !failed()) return;
  // A thread cannot be stopped from outside, and waiting for it would hang.
  const absl::Duration grace = ReturnGrace(timeout_);
  CH_CHECK(RunningTime() - *failed_at_ <= grace)
      << "rank " << rank_ << " did not come back within "
      << absl::FormatDuration(grace)
      << " after the run failed: " << ResultOf(*failure_).ToString();
}

int ProcessJob::NextTag() {
  const auto pairs = static_cast<uint32_t>(link_.max_tag() / 2);
  const uint32_t taken = tags_taken_.fetch_add(1, std::memory_order_relaxed);
  return static_cast<int>(1 + taken % pairs * 2);
}

void ProcessJob::Post(int to, std::string& message) {
  if (lost_[to] || !link_error_.ok()) return;
  if (unused_.empty()) unused_.push_back(std::make_unique<Posted>());
  std::unique_ptr<Posted> posted = std::move(unused_.back());
  unused_.pop_back();
  std::swap(posted->message, message);
  RecordLinkError(link_.SendControl(to, posted->message, posted->request));
  (posted->request.pending ? posted_ : unused_).push_back(std::move(posted));
  link_.Notify(to);
}

void ProcessJob::PostToOthers(absl::Span<const int> ranks,
                              const std::string& message) {
  for (const int rank : ranks) {
    if (rank == rank_) continue;
    std::string copy = message;
    Post(rank, copy);
  }
}

void ProcessJob::LeaveRounds(JobGroup& group, int64_t round) {
  int64_t& left = group.left[static_cast<size_t>(group.me)];
  if (left <= round) return;
  left = round;
  std::string message;
  StartMessage({.kind = MessageKind::kLeft, .group = group.id, .round = round},
               message);
  PostToOthers(group.key.world_ranks, message);
}

void ProcessJob::BeginRound(JobGroup::Lane& lane) {
  ++lane.round;
  lane.since = Clock::now();
  lane.turn = ++turns_;
}

void ProcessJob::RecordLinkError(const absl::Status& error) {
  if (error.ok() || !link_error_.ok()) return;
  BreakLink(error);
  if (!failed()) {
    EndRank({.world_ranks = {rank_}, .cut_off = true, .error = error});
  }
}

void ProcessJob::BreakLink(const absl::Status& why) {
  if (!link_error_.ok()) return;
  link_error_ = why;
  // Reported even if the job has failed: the others wait for this process.
  if (channel_ == nullptr) return;
  channel_->Report({.world_ranks = {rank_}, .cut_off = true, .error = why});
}

bool ProcessJob::TakeMessages() {
  progress_.fetch_add(1, std::memory_order_relaxed);
  bool any = false;
  if (has_notices_.load(std::memory_order_relaxed)) {
    TakeNotices();
    any = true;
  }
  while (link_error_.ok()) {
    int from = -1;
    RecordLinkError(link_.TakeControl(from, incoming_));
    if (from < 0) break;
    any = true;
    Deliver(from, incoming_);
  }
  TestPosted();
  return any;
}

void ProcessJob::Deliver(int from, std::string& message) {
  const MessageHeader header = HeaderOf(message);
  switch (header.kind) {
    case MessageKind::kAgree:
    case MessageKind::kGather:
    case MessageKind::kLeft:
      if (groups_.contains(header.group)) {
        DeliverToGroup(from, header, message);
      } else {
        unclaimed_[header.group].emplace_back(from, message);
      }
      break;
    case MessageKind::kFinished:
      finished_[from] = true;
      awaits_failure_ = awaits_failure_ || header.round != 0;
      if (awaits_failure_ && !failed_at_.has_value())
        failed_at_ = RunningTime();
      break;
    case MessageKind::kFailure:
      if (rank_ == 0) {
        Decide(ReadFailure(message));
      } else {
        OnDecision(ReadFailure(message));
      }
      break;
    case MessageKind::kGivenUp:
      is_given_up_ = true;
      break;
  }
}

void ProcessJob::DeliverToGroup(int from, const MessageHeader& header,
                                std::string& message) {
  JobGroup& group = *groups_.at(header.group);
  const int member = group.MemberOf(from);
  switch (header.kind) {
    case MessageKind::kAgree:
      group.agreements.arrivals.File(member, header, message);
      break;
    case MessageKind::kGather:
      group.gathers.arrivals.File(member, header, message);
      break;
    default:
      group.left[static_cast<size_t>(member)] = header.round;
      break;
  }
}

void ProcessJob::TestPosted() {
  for (size_t i = 0; i < posted_.size() && link_error_.ok();) {
    RecordLinkError(link_.Test(posted_[i]->request));
    if (posted_[i]->request.pending) {
      ++i;
    } else {
      std::swap(posted_[i], posted_.back());
      unused_.push_back(std::move(posted_.back()));
      posted_.pop_back();
    }
  }
}

void ProcessJob::OnNotice(const FailureNotice& notice) {
  {
    std::lock_guard lock(notices_mutex_);
    notices_.push_back(notice);
  }
  has_notices_ = true;
  // The next thread that polls handles it, at the latest the watchdog.
  link_.Notify(rank_);
}

void ProcessJob::TakeNotices() {
  std::vector<FailureNotice> notices;
  {
    std::lock_guard lock(notices_mutex_);
    has_notices_ = false;
    notices.swap(notices_);
  }
  const auto is_here = [this](int rank) {
    return static_cast<size_t>(rank) < lost_.size();
  };
  for (const FailureNotice& notice : notices) {
    // Ignores processes that have no part in the job.
    if (!notice.world_ranks.empty() &&
        std::none_of(notice.world_ranks.begin(), notice.world_ranks.end(),
                     is_here)) {
      continue;
    }
    if (notice.process_lost || notice.cut_off) {
      for (int rank : notice.world_ranks) {
        if (is_here(rank)) lost_[static_cast<size_t>(rank)] = true;
      }
    }
    OnDecision(notice);
  }
}

bool ProcessJob::IsBlocked() {
  const Clock::time_point now = Clock::now();
  const int64_t progress = progress_.load(std::memory_order_relaxed);
  if (progress != seen_progress_) {
    seen_progress_ = progress;
    blocked_since_ = now;
  }
  return absl::FromChrono(now - blocked_since_) > timeout_;
}

std::string ProcessJob::Activity() {
  Lock lock(mutex_, std::try_to_lock);
  for (const auto until = Clock::now() + kLockTimeout;
       !lock.owns_lock() && Clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    static_cast<void>(lock.try_lock());
  }
  if (!lock.owns_lock()) {
    const std::string text = absl::StrCat(
        last_activity_, "; in a call of its transport that does not return");
    if (IsBlocked() && !std::exchange(has_reported_block_, true)) {
      channel_->Report({.world_ranks = {rank_},
                        .error = absl::DeadlineExceededError(absl::StrCat(
                            text, ", for ", absl::FormatDuration(timeout_)))});
    }
    return text;
  }
  seen_progress_ = -1;
  std::string text = ActivityLocked();
  last_activity_ = text;
  const std::vector<Moved> planes = planes_;
  lock.unlock();
  for (const Moved& moved : planes) {
    const std::string recent = moved.plane->Recent();
    if (recent.empty()) continue;
    absl::StrAppend(&text, "; its device ", recent, " of ",
                    Describe(moved.group->key));
  }
  return text;
}

std::string ProcessJob::ActivityLocked() const {
  std::string text;
  const auto add = [&](const auto&... parts) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", parts...);
  };
  const auto describe = [](const JobGroup& group, const JobGroup::Lane& lane) {
    return absl::StrCat(
        DescribeMessage(lane.arrivals.message(group.me, lane.round)), " of ",
        Describe(group.key));
  };
  const JobGroup* last_group = nullptr;
  const JobGroup::Lane* last = nullptr;
  for (const auto& [id, group] : groups_) {
    for (const auto* lane : {&group->gathers, &group->agreements}) {
      if (lane->turn > (last == nullptr ? 0 : last->turn)) {
        last = lane;
        last_group = group.get();
      }
      if (!lane->since.has_value()) continue;
      add("in ", describe(*group, *lane), For(*lane->since));
    }
  }
  if (!text.empty()) return text;
  if (function_returned_) return "finished";
  if (last == nullptr) return "before its first collective";
  return "computing, after " + describe(*last_group, *last);
}

}  // namespace crosshatch::internal
