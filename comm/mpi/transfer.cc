// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/transfer.h"

#include <algorithm>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/mpi/control_message.h"

namespace crosshatch::internal {
namespace {

constexpr int64_t kLine = 64;

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t(kLine));
}

std::byte* Scratch::Get(int64_t bytes) {
  if (bytes > size_) {
    memory_.reset();
    memory_.reset(static_cast<std::byte*>(
        ::operator new(static_cast<size_t>(bytes), std::align_val_t(kLine))));
    size_ = bytes;
  }
  return memory_.get();
}

Transfer::Transfer(ProcessJob& job, JobGroup& group)
    : job_(job), group_(group) {}

void Transfer::Begin(int64_t elem_bytes, int64_t piece_elems,
                     const SpanRow& spans) {
  elem_bytes_ = elem_bytes;
  piece_elems_ = piece_elems;
  spans_ = spans;
  num_rounds_ = 0;
  flows_.clear();
}

void Transfer::AddSend(int member, int tag, absl::Span<const Segment> list,
                       int64_t begin, int64_t elems) {
  if (elems == 0) return;
  flows_.push_back({Flow::Kind::kSend, member, tag,
                    SegmentCursor(list, elem_bytes_, begin), elems});
}

void Transfer::AddReceive(int member, int tag, absl::Span<const Segment> list,
                          int64_t begin, int64_t elems) {
  if (elems == 0) return;
  flows_.push_back({Flow::Kind::kReceive, member, tag,
                    SegmentCursor(list, elem_bytes_, begin), elems});
}

void Transfer::AddToScratch(int member, int tag, int64_t elems) {
  if (elems == 0) return;
  flows_.push_back({Flow::Kind::kToScratch, member, tag,
                    SegmentCursor({}, elem_bytes_), elems});
}

absl::Status Transfer::Run(absl::FunctionRef<void()> meanwhile,
                           Consume consume) {
  num_rounds_ = 0;
  for (const Flow& flow : flows_) {
    num_rounds_ =
        std::max(num_rounds_, (flow.elems + piece_elems_ - 1) / piece_elems_);
  }
  for (Round& round : rounds_) {
    round.sends.clear();
    round.receives.clear();
  }
  int64_t posted = 0;
  while (posted < std::min<int64_t>(num_rounds_, kWindow)) Post(posted++);
  meanwhile();
  for (int64_t number = 0; number < num_rounds_; ++number) {
    Round& round = rounds_[number % kWindow];
    if (!WaitFor(round.receives)) return Abandon();
    // The peer waits until its data have been received.
    NotifySenders(round);
    consumed_.clear();
    int64_t elems = 0;
    for (const Piece& piece : round.receives) {
      if (piece.flow->kind == Flow::Kind::kToScratch) {
        consumed_.push_back(piece.memory);
        elems = piece.elems;
      } else if (piece.staged) {
        const StreamSpan packing(spans_, "packing");
        const Segment packed{.data = piece.memory, .run_elems = piece.elems};
        CopySegments(SegmentCursor({&packed, 1}, elem_bytes_), piece.cursor,
                     piece.elems, elem_bytes_);
      }
    }
    if (!consumed_.empty()) {
      consume(consumed_, number * piece_elems_, elems);
    }
    if (!WaitFor(round.sends)) return Abandon();
    if (posted < num_rounds_) Post(posted++);
  }
  return absl::OkStatus();
}

void Transfer::Post(int64_t number) {
  Round& round = rounds_[number % kWindow];
  round.sends.clear();
  round.receives.clear();
  int64_t staged_bytes = 0;
  for (Flow& flow : flows_) {
    const int64_t elems =
        std::min(piece_elems_, flow.elems - number * piece_elems_);
    if (elems <= 0) continue;
    const bool staged = flow.cursor.contiguous() < elems;
    auto& pieces =
        flow.kind == Flow::Kind::kSend ? round.sends : round.receives;
    // The memory of staged pieces is set when all have been counted.
    pieces.push_back({.flow = &flow,
                      .elems = elems,
                      .memory = staged ? nullptr : flow.cursor.data(),
                      .cursor = flow.cursor,
                      .staged = staged});
    if (staged) {
      staged_bytes += (elems * elem_bytes_ + kLine - 1) / kLine * kLine;
    }
    if (flow.kind != Flow::Kind::kToScratch) flow.cursor.Skip(elems);
  }
  std::byte* scratch = round.scratch.Get(staged_bytes);
  for (auto* pieces : {&round.sends, &round.receives}) {
    for (Piece& piece : *pieces) {
      if (!piece.staged) continue;
      piece.memory = scratch;
      scratch += (piece.elems * elem_bytes_ + kLine - 1) / kLine * kLine;
      if (pieces != &round.sends) continue;
      const StreamSpan packing(spans_, "packing");
      const Segment packed{.data = piece.memory, .run_elems = piece.elems};
      CopySegments(piece.cursor, SegmentCursor({&packed, 1}, elem_bytes_),
                   piece.elems, elem_bytes_);
    }
  }
  {
    ProcessJob::Lock lock = job_.TakeLock();
    Link& link = job_.link();
    const auto rank = [&](const Piece& piece) {
      return group_.key.world_ranks[piece.flow->member];
    };
    for (Piece& piece : round.receives) {
      if (!job_.link_error().ok()) return;
      job_.RecordLinkError(link.Receive(rank(piece), piece.flow->tag,
                                        piece.memory, piece.elems * elem_bytes_,
                                        piece.request));
    }
    for (Piece& piece : round.sends) {
      if (!job_.link_error().ok()) return;
      job_.RecordLinkError(link.Send(rank(piece), piece.flow->tag, piece.memory,
                                     piece.elems * elem_bytes_, piece.request));
    }
  }
  for (const Piece& piece : round.sends) {
    job_.link().Notify(group_.key.world_ranks[piece.flow->member]);
  }
}

bool Transfer::TestAll(std::vector<Piece>& pieces) {
  bool all = true;
  for (Piece& piece : pieces) {
    if (!piece.request.pending || !job_.link_error().ok()) continue;
    job_.RecordLinkError(job_.link().Test(piece.request));
    all = all && !piece.request.pending;
  }
  return all && job_.link_error().ok();
}

bool Transfer::WaitFor(std::vector<Piece>& pieces) {
  ProcessJob::Lock lock = job_.TakeLock();
  const absl::Duration until = job_.RunningTime() + group_.timeout;
  bool done = false;
  bool late = false;
  job_.Wait(lock, [&] {
    done = TestAll(pieces);
    if (done || !job_.link_error().ok()) return true;
    for (const Piece& piece : pieces) {
      if (piece.request.pending && Gone(piece.flow->member)) {
        return true;
      }
    }
    late = job_.RunningTime() > until;
    return late;
  });
  if (!late) return done;
  const std::string whom = Awaited(pieces);
  lock.unlock();
  job_.FailGroup(group_,
                 absl::DeadlineExceededError(absl::StrCat(
                     Describe(group_.key), " timed out after ",
                     absl::FormatDuration(group_.timeout), ": ", whom)));
  return false;
}

std::string Transfer::Awaited(const std::vector<Piece>& pieces) const {
  std::vector<std::string> ranks;
  for (const Piece& piece : pieces) {
    if (!piece.request.pending) continue;
    ranks.push_back(
        absl::StrCat("rank ", group_.key.world_ranks[piece.flow->member]));
  }
  const JobGroup::Lane& lane = group_.agreements;
  return absl::StrCat(
      absl::StrJoin(ranks, ", "), " came to ",
      DescribeMessage(lane.arrivals.message(group_.me, lane.round)),
      " and moved no data since");
}

void Transfer::NotifySenders(const Round& round) {
  for (const Piece& piece : round.receives) {
    job_.link().Notify(group_.key.world_ranks[piece.flow->member]);
  }
}

bool Transfer::Gone(int member) const {
  return group_.left[static_cast<size_t>(member)] <= group_.agreements.round ||
         job_.lost(group_.key.world_ranks[member]);
}

absl::Status Transfer::Abandon() {
  ProcessJob::Lock lock = job_.TakeLock();
  Link& link = job_.link();
  // Less than the grace period of the rank of a failed job.
  const absl::Duration until = job_.RunningTime() + job_.timeout() / 2;
  const auto is_late = [&] { return job_.RunningTime() > until; };
  const auto for_each_pending = [&](auto&& function) {
    for (Round& round : rounds_) {
      for (auto* pieces : {&round.receives, &round.sends}) {
        for (Piece& piece : *pieces) {
          if (piece.request.pending) function(piece, pieces == &round.receives);
        }
      }
    }
  };
  if (job_.link_error().ok()) {
    for_each_pending([&](Piece& piece, bool receives) {
      if (receives) job_.RecordLinkError(link.CancelReceive(piece.request));
    });
    // Only receives that have met their message go on. Then this process reads
    // no peer's memory any more.
    const auto wait = [&](bool for_sends) {
      job_.Wait(lock, [&] {
        bool settled = true;
        for_each_pending([&](Piece& piece, bool receives) {
          if (receives == for_sends) return;
          if (job_.link_error().ok()) {
            job_.RecordLinkError(link.Test(piece.request));
          }
          if (!piece.request.pending) return;
          const int member = piece.flow->member;
          const bool gone = for_sends
                                ? Gone(member)
                                : job_.lost(group_.key.world_ranks[member]);
          settled = settled && gone;
        });
        return settled || !job_.link_error().ok() || is_late();
      });
    };
    wait(/*for_sends=*/false);
    job_.LeaveRounds(group_, group_.agreements.round);
    wait(/*for_sends=*/true);
    // A member leaves because the job has failed; the report may be in flight.
    job_.Wait(lock, [&] { return job_.failed() || is_late(); });
    for_each_pending([&](Piece& piece, bool) {
      if (Gone(piece.flow->member)) return;
      job_.BreakLink(absl::DeadlineExceededError(
          absl::StrCat("rank ", group_.key.world_ranks[piece.flow->member],
                       " may still read the memory of rank ", job_.rank())));
    });
  }
  for_each_pending([&](Piece& piece, bool) { link.Forget(piece.request); });
  lock.unlock();
  absl::Status failure = job_.failure();
  if (!failure.ok()) return failure;
  failure = absl::InternalError(absl::StrCat(
      "a member of ", Describe(group_.key), " left a collective and did not ",
      "report why within ", absl::FormatDuration(job_.timeout() / 2)));
  job_.FailGroup(group_, failure);
  return failure;
}

}  // namespace crosshatch::internal
