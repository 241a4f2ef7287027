// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/speaker.h"

namespace crosshatch {

bool SpeaksWithoutRank0(int rank, int first_elsewhere) {
  return rank == 1 || rank == first_elsewhere;
}

bool SpeaksOfNobody(int rank, int local_rank) {
  return rank <= 1 || local_rank <= 0;
}

}  // namespace crosshatch
