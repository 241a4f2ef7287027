// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_CONTROL_MESSAGE_H_
#define CROSSHATCH_COMM_MPI_CONTROL_MESSAGE_H_

/// \file
/// Control messages between the processes of a job: a header and contents by
/// kind.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::internal {

enum class MessageKind : uint32_t {
  /// The sender has reached a collective: its fingerprint and payload.
  kAgree,
  /// The sender has reached an exchange: its name and blob.
  kGather,
  /// The sender skips this and all later collectives of the group, and does not
  /// read its peers' memory.
  kLeft,
  /// The sender's function has returned.
  kFinished,
  /// A failure. To rank 0: the sender's. From rank 0: the job's.
  kFailure,
  /// The sender leaves the job without waiting for all others.
  kGivenUp,
};

struct MessageHeader {
  MessageKind kind = MessageKind::kAgree;
  uint64_t group = 0;
  /// The number of the group's round of this kind. kFinished: 1 if the sender
  /// has failed, else 0.
  int64_t round = 0;
  /// kAgree, kGather: bytes of the payload.
  int64_t data_bytes = 0;
  /// Where the payload begins, a multiple of 16.
  int64_t data_at = 0;
};

/// Returns the id of a group, the same on all processes. It is a 64-bit hash; a
/// thousand groups collide with probability 10^-13.
uint64_t GroupId(const GroupKey& key);

/// Makes `message` a header without contents.
void StartMessage(const MessageHeader& header, std::string& message);
MessageHeader HeaderOf(const std::string& message);
void SetHeader(const MessageHeader& header, std::string& message);

/// \name kAgree and kGather
/// Reading returns what was appended, in memory that it reuses.
/// @{
void AppendFingerprint(const Fingerprint& fingerprint, std::string& message);
void ReadFingerprint(const std::string& message, Fingerprint& fingerprint);
/// Returns Describe of the fingerprint.
std::string DescribeMessage(const std::string& message);
/// Returns room for a payload of `bytes`, aligned, which the header describes.
char* AppendPayload(int64_t bytes, std::string& message);
/// @}

/// \name kFailure
/// @{
void AppendFailure(const FailureNotice& notice, std::string& message);
FailureNotice ReadFailure(const std::string& message);
/// @}

/// The messages of one kind of one group, by round and member. A member enters
/// the next round only after all have entered the previous one, so messages of
/// at most two rounds exist at a time.
class Arrivals {
 public:
  explicit Arrivals(int members);

  /// Adds the message of `member`; `message` gets the memory of an earlier one.
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

  /// Ends `round`. Its messages stay readable until the next round but one.
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
