// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_TRANSFER_H_
#define CROSSHATCH_COMM_MPI_TRANSFER_H_

/// \file
/// Transfer: moves the data of one collective, once all members agree.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/comm/mpi/process_job.h"
#include "crosshatch/comm/segment_cursor.h"

namespace crosshatch::internal {

class Scratch {
 public:
  /// Returns at least `bytes`, aligned to a cache line. If the buffer grows,
  /// its contents are lost.
  std::byte* Get(int64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t size_ = 0;
};

/// Moves lists to and from the other members, all at the same time. Each list
/// is cut into pieces of the same number of elements. A piece that is one run
/// of memory is sent from there, or received there; any other is packed, or
/// unpacked. A few pieces of each list are in flight at a time, so that packed
/// and summed data are bounded and still in the cache.
///
/// A transfer ends early only if a member has left the round, is lost, or moves
/// no data for the group's timeout. Then it returns when no member reads this
/// process's memory any more. If that takes half the timeout, it breaks the
/// link. Its memory is kept from one use to the next.
/// \threadsafety one thread at a time, with no lock held.
class Transfer {
 public:
  /// Consumes the pieces of all lists that are received in scratch memory, in
  /// the order of AddToScratch: `elems` elements, `at` from the start.
  using Consume = absl::FunctionRef<void(
      absl::Span<const std::byte* const> pieces, int64_t at, int64_t elems)>;

  Transfer(ProcessJob& job, JobGroup& group);

  /// Removes all lists.
  /// \param spans of "packing", which has unpacking too.
  void Begin(int64_t elem_bytes, int64_t piece_elems, const SpanRow& spans);
  /// \param list must outlive Run
  /// \param begin, elems the part of `list` to send
  void AddSend(int member, int tag, absl::Span<const Segment> list,
               int64_t begin, int64_t elems);
  void AddReceive(int member, int tag, absl::Span<const Segment> list,
                  int64_t begin, int64_t elems);
  /// All lists to scratch have the same number of elements.
  void AddToScratch(int member, int tag, int64_t elems);

  /// Moves the lists.
  /// \param meanwhile called once, while the first pieces are in flight.
  /// \error why the job has failed.
  absl::Status Run(absl::FunctionRef<void()> meanwhile, Consume consume);

 private:
  /// Pieces of each list in flight at a time.
  static constexpr int kWindow = 3;

  struct Flow {
    enum class Kind { kSend, kReceive, kToScratch };
    Kind kind;
    int member;
    int tag;
    SegmentCursor cursor;
    int64_t elems;
  };
  struct Piece {
    Flow* flow;
    int64_t elems;
    std::byte* memory;
    /// The destination of a staged piece.
    SegmentCursor cursor;
    bool staged;
    LinkRequest request;
  };
  /// The pieces with one index, of all flows.
  struct Round {
    std::vector<Piece> sends;
    std::vector<Piece> receives;
    Scratch scratch;
  };

  void Post(int64_t number);
  bool TestAll(std::vector<Piece>& pieces);
  /// Waits for the pieces. Returns false if they will not come; if they are too
  /// late, fails the job.
  bool WaitFor(std::vector<Piece>& pieces);
  /// Returns which members' data have not come, for messages.
  /// \pre The lock is held.
  std::string Awaited(const std::vector<Piece>& pieces) const;
  void NotifySenders(const Round& round);
  bool Gone(int member) const;
  absl::Status Abandon();

  ProcessJob& job_;
  JobGroup& group_;
  int64_t elem_bytes_ = 1;
  int64_t piece_elems_ = 1;
  SpanRow spans_;
  int64_t num_rounds_ = 0;
  std::vector<Flow> flows_;
  Round rounds_[kWindow];
  std::vector<const std::byte*> consumed_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_TRANSFER_H_
