// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_SPEAKER_H_
#define CROSSHATCH_LAUNCH_SPEAKER_H_

#include <string>
#include <vector>

namespace crosshatch {

/// Whether `rank` is to say that rank 0, which speaks for the job, is lost: the
/// lowest rank that is left, and, since rank 0's whole host may be, the lowest
/// one of another host. The others stay silent, so that there is one line, or
/// two at most.
/// \param hosts of all ranks, by rank.
bool SpeaksWithoutRank0(int rank, const std::vector<std::string>& hosts);

/// The same where no rank has heard of another: nobody came to be rank 0, or
/// not where the others look for it.
/// \param local_rank among the processes of this host; -1: not known.
bool SpeaksOfNobody(int rank, int local_rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_SPEAKER_H_
