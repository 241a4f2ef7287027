// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/speaker.h"

namespace crosshatch {

bool SpeaksWithoutRank0(int rank, const std::vector<std::string>& hosts) {
  if (rank <= 1) return rank == 1;
  for (int other = 1; other < static_cast<int>(hosts.size()); ++other) {
    if (hosts[other] != hosts[0]) return other == rank;
  }
  return false;
}

bool SpeaksOfNobody(int rank, int local_rank) {
  return rank <= 1 || local_rank <= 0;
}

}  // namespace crosshatch
