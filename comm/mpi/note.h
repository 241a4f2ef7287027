// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_NOTE_H_
#define CROSSHATCH_COMM_MPI_NOTE_H_

/// \file
/// What the processes of a job write one another beside data: a header and,
/// after it, what its kind needs.

#include <cstdint>
#include <string>

#include "crosshatch/comm/failure_channel.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"

namespace crosshatch::internal {

enum class NoteKind : uint32_t {
  /// The sender has come to a collective: its fingerprint, and data that are
  /// small enough to come along.
  kMeet,
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

struct NoteHeader {
  NoteKind kind = NoteKind::kMeet;
  uint64_t group = 0;
  /// Of the group's meetings of this kind, in the order of coming. kFinished: 1
  /// if the sender has failed, else 0.
  int64_t meeting = 0;
  /// kMeet: bytes of data at DataAt(note); 0 if they come by themselves.
  int64_t data_bytes = 0;
  /// kMeet: where the data begin, a multiple of 16.
  int64_t data_at = 0;
};

/// Names a group: the same on all processes, another for another key (64 bits
/// of a hash: one collision in 10^13 among a thousand groups).
uint64_t GroupId(const GroupKey& key);

/// Makes `note` a header without anything after it.
void StartNote(const NoteHeader& header, std::string& note);
NoteHeader HeaderOf(const std::string& note);
void SetHeader(const NoteHeader& header, std::string& note);

/// \name kMeet
/// Reading gives back what was appended, into memory that it reuses.
/// @{
void AppendFingerprint(const Fingerprint& fingerprint, std::string& note);
void ReadFingerprint(const std::string& note, Fingerprint& fingerprint);
/// Room for `bytes` of data, aligned; writes it into the header.
char* AppendData(int64_t bytes, std::string& note);
/// @}

/// \name kFailure
/// @{
void AppendFailure(const FailureNotice& notice, std::string& note);
FailureNotice ReadFailure(const std::string& note);
/// @}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_NOTE_H_
