// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_SPEAKER_H_
#define CROSSHATCH_LAUNCH_SPEAKER_H_

#include <string>

#include "absl/time/time.h"

namespace crosshatch {

/// \name Who speaks where processes cannot reach one another
/// They may fail alike, and those of a host can at least see that one of them
/// has said so. By a name in the host's memory, which goes with the process and
/// which counts only if this user has it.
/// @{

/// What has started this process, and others like it, as a topic has it: by its
/// number, and by whose number that is, since each container has such ones.
std::string NameOfParent();
/// Whether this process, until it ends, is the one of this host and this user
/// that speaks of `topic`.
bool SpeaksFirst(const std::string& topic);
/// Whether a process speaks of it, or has and is still there.
bool IsSpokenOf(const std::string& topic);
/// For so long one that has spoken stays, since the others fail about when it
/// does.
inline constexpr absl::Duration kSpeakerStays = absl::Seconds(2);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_SPEAKER_H_
