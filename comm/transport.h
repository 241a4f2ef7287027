// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_TRANSPORT_H_
#define CROSSHATCH_COMM_TRANSPORT_H_

/// \file
/// Transport: what an engine does for one group on one rank. It brings data
/// from rank to rank and can be ended; everything else that the contract of
/// collectives promises is Communicator's and the same for every engine.
/// docs/adding_an_engine.md goes through it.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// One member's end of a group.
class Transport {
 public:
  virtual ~Transport() = default;

  /// This member's collectives will all run on `stream`. Called once, by the
  /// rank's thread, before the first of them.
  virtual void Bind(Stream& stream) = 0;

  /// Does this rank's part of `collective`, which is well formed. Called in the
  /// order of issue, by what runs the stream's tasks: on a CPU's queue by its
  /// worker, and then it returns when the data are in place and no peer reads
  /// this rank's memory any more, with success as with an error; on a device's
  /// stream by the rank's thread, and then it enqueues to the stream of
  /// `context` and returns.
  ///
  /// An engine compares the members' fingerprints with CheckAgreement before
  /// data move, or sends them over a side channel and compares them later. In
  /// any case a difference, a member that does not come and the end of another
  /// group become an error here or, once this has returned, a Fail.
  ///
  /// \param fingerprint of `collective`; valid until the next call.
  /// \error why the group has failed. Poisons the rank.
  virtual absl::Status Run(const Collective& collective,
                           const Fingerprint& fingerprint,
                           KernelContext& context) = 0;

  /// The side channel: the blobs of all members, by index; they may differ in
  /// size. Blocks the rank's thread, ordered with no stream.
  /// \param what says what is gathered, for messages of who waits for whom.
  /// \error why the group has failed. Poisons the rank.
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) = 0;

  /// Ends the group on all members with `failure` (not OK), which poisons
  /// them, and with it the job. Only the first failure of a job counts.
  /// \threadsafety any thread.
  virtual void Fail(const absl::Status& failure) = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_TRANSPORT_H_
