// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_MEETINGS_H_
#define CROSSHATCH_COMM_MPI_MEETINGS_H_

/// \file
/// What the members of one group have said as they came to its meetings.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "crosshatch/comm/mpi/note.h"

namespace crosshatch::internal {

/// Meetings of one kind of one group, numbered in the order in which a member
/// comes to them. A member comes to the next one only after all have come to
/// the one before, so notes of at most two meetings are there at a time.
class Meetings {
 public:
  explicit Meetings(int members);

  /// Files what `member` said, and gives its memory of an earlier note back.
  void File(int member, const NoteHeader& header, std::string& note);

  bool Came(int member, int64_t meeting) const {
    return slot(member, meeting).header.meeting == meeting;
  }
  bool AllCame(int64_t meeting) const {
    return num_came_[Parity(meeting)] == members_;
  }
  const NoteHeader& header(int member, int64_t meeting) const {
    return slot(member, meeting).header;
  }
  const std::string& note(int member, int64_t meeting) const {
    return slot(member, meeting).note;
  }

  /// All is done that the notes of `meeting` were for; they stay readable until
  /// the next but one.
  void Close(int64_t meeting) { num_came_[Parity(meeting)] = 0; }

 private:
  struct Slot {
    NoteHeader header{.meeting = -1};
    std::string note;
  };

  static size_t Parity(int64_t meeting) {
    return static_cast<size_t>(meeting & 1);
  }
  const Slot& slot(int member, int64_t meeting) const {
    return slots_[Parity(meeting)][static_cast<size_t>(member)];
  }

  const int members_;
  std::vector<Slot> slots_[2];
  int num_came_[2] = {0, 0};
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_MEETINGS_H_
