// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_SPEAKER_H_
#define CROSSHATCH_LAUNCH_SPEAKER_H_

namespace crosshatch {

/// Whether `rank` is to say that rank 0, which speaks for the job, is lost: the
/// lowest rank that is left, and, since rank 0's whole host may be, the lowest
/// one of another host. The others stay silent, so that there is one line, or
/// two at most.
/// \param first_elsewhere the lowest rank on another host than rank 0's, or -1.
bool SpeaksWithoutRank0(int rank, int first_elsewhere);

/// The same where no rank has heard of another: nobody came to be rank 0, or
/// not where the others look for it.
/// \param local_rank among the processes of this host; -1: not known.
bool SpeaksOfNobody(int rank, int local_rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_SPEAKER_H_
