// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_CONTROL_MESSAGE_H_
#define CROSSHATCH_COMM_MPI_CONTROL_MESSAGE_H_

/// \file
/// What the processes of a job write one another beside data: a header and,
/// after it, what its kind needs.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::internal {

enum class MessageKind : uint32_t {
  /// The sender has come to a collective: its fingerprint, and data that are
  /// small enough to come along.
  kAgree,
  /// The sender has come to a gathering: its blob.
  kGather,
  /// The sender will take no part in this and all later collectives of the
  /// group, and reads nobody's memory for them.
  kLeft,
  /// The sender's function has returned.
  kFinished,
  /// A failure: to rank 0 one that the sender has found, and from rank 0 what
  /// the job has failed with.
  kFailure,
  /// The sender leaves the job without waiting for all others.
  kGivenUp,
};

struct MessageHeader {
  MessageKind kind = MessageKind::kAgree;
  uint64_t group = 0;
  /// Of the group's rounds of this kind, in the order of coming. kFinished: 1
  /// if the sender has failed, else 0.
  int64_t round = 0;
  /// kAgree: bytes of data at DataAt(message); 0 if they come by themselves.
  int64_t data_bytes = 0;
  /// kAgree: where the data begin, a multiple of 16.
  int64_t data_at = 0;
};

/// Names a group: the same on all processes, another for another key (64 bits
/// of a hash: one collision in 10^13 among a thousand groups).
uint64_t GroupId(const GroupKey& key);

/// Makes `message` a header without anything after it.
void StartMessage(const MessageHeader& header, std::string& message);
MessageHeader HeaderOf(const std::string& message);
void SetHeader(const MessageHeader& header, std::string& message);

/// \name kAgree
/// Reading gives back what was appended, into memory that it reuses.
/// @{
void AppendFingerprint(const Fingerprint& fingerprint, std::string& message);
void ReadFingerprint(const std::string& message, Fingerprint& fingerprint);
/// Room for `bytes` of data, aligned; writes it into the header.
char* AppendPayload(int64_t bytes, std::string& message);
/// @}

/// \name kFailure
/// @{
void AppendFailure(const FailureNotice& notice, std::string& message);
FailureNotice ReadFailure(const std::string& message);
/// @}

/// Arrivals of one kind of one group, numbered in the order in which a member
/// comes to them. A member comes to the next one only after all have come to
/// the one before, so messages of at most two rounds are there at a time.
class Arrivals {
 public:
  explicit Arrivals(int members);

  /// Files what `member` said, and gives its memory of an earlier message back.
  void File(int member, const MessageHeader& header, std::string& message);

  bool Came(int member, int64_t round) const {
    return slot(member, round).header.round == round;
  }
  bool AllCame(int64_t round) const {
    return num_came_[Parity(round)] == members_;
  }
  const MessageHeader& header(int member, int64_t round) const {
    return slot(member, round).header;
  }
  const std::string& message(int member, int64_t round) const {
    return slot(member, round).message;
  }

  /// All is done that the messages of `round` were for; they stay readable
  /// until the next but one.
  void Close(int64_t round) { num_came_[Parity(round)] = 0; }

 private:
  struct Slot {
    MessageHeader header{.round = -1};
    std::string message;
  };

  static size_t Parity(int64_t round) { return static_cast<size_t>(round & 1); }
  const Slot& slot(int member, int64_t round) const {
    return slots_[Parity(round)][static_cast<size_t>(member)];
  }

  const int members_;
  std::vector<Slot> slots_[2];
  int num_came_[2] = {0, 0};
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_CONTROL_MESSAGE_H_
