// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/meetings.h"

#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch::internal {

Meetings::Meetings(int members) : members_(members) {
  for (std::vector<Slot>& slots : slots_) {
    slots.resize(static_cast<size_t>(members));
  }
}

void Meetings::File(int member, const NoteHeader& header, std::string& note) {
  const size_t parity = Parity(header.meeting);
  Slot& slot = slots_[parity][static_cast<size_t>(member)];
  // -1 is odd: the first odd meeting comes two after it as any other would.
  CH_CHECK(slot.header.meeting == header.meeting - 2 ||
           (slot.header.meeting == -1 && header.meeting == 0))
      << "member " << member << " came to meeting " << header.meeting
      << " after " << slot.header.meeting;
  slot.header = header;
  std::swap(slot.note, note);
  ++num_came_[parity];
}

}  // namespace crosshatch::internal
