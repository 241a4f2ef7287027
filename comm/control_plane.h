// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONTROL_PLANE_H_
#define CROSSHATCH_COMM_CONTROL_PLANE_H_

/// \file
/// The control plane: ranks agree on what they issue, gather small values, and
/// report failures. It is implemented by threads (comm/local) and by processes
/// (comm/mpi). Data planes (comm/data_plane.h) move data.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// The order of a gather among the other calls of a group. Gathers of one order
/// match by their position in it.
enum class GatherOrder : uint8_t {
  /// Among the gathers that the rank's thread calls; independent of streams.
  kOfRank,
  /// Among the group's collectives; called where Agree is called.
  kOfStream,
};

/// One member's handle of a group. Its destructor uses neither the control
/// plane nor the rank's context, which may be destroyed before it. As Payloads,
/// it returns the payloads of the latest agreement, until Done.
class ControlGroup : public Payloads {
 public:
  /// Binds this member's collectives to `stream`. The rank's thread calls it
  /// once, before the first collective.
  virtual void Bind(Stream& stream) = 0;

  /// Waits until all members have reached a collective, and compares their
  /// fingerprints (CheckAgreement). Called in the order of issue, by the thread
  /// that runs the stream's tasks: the worker of a CPU's queue, or the rank's
  /// thread for a device's.
  /// \param fingerprint valid until Done
  /// \param offer called once, before the wait, with the room for this member's
  ///     payloads
  /// \error the failure of the group: a difference, a missing member, or a
  ///     failure elsewhere
  virtual absl::Status Agree(const Fingerprint& fingerprint,
                             absl::FunctionRef<void(PayloadRoom)> offer) = 0;
  /// Ends the collective of the latest Agree: this member's part of it has been
  /// issued.
  virtual void Done() = 0;

  /// Returns the blobs of all members, by index; they may differ in size.
  /// \param what the name of the gather, which members compare
  /// \error as of Agree
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) = 0;

  /// Polls `plane` from now on, and aborts it when the job fails.
  /// \param blocks whether DataPlane::Issue returns when the data are in place.
  ///     If so, it must return within the timeout.
  virtual void Watch(std::shared_ptr<DataPlane> /*plane*/, bool /*blocks*/) {}

  /// Fails the group, and with it the job: `failure` (not OK) poisons all
  /// members. Only the first failure of a job counts.
  /// \returns the failure of the group, as this member gets it
  /// \threadsafety any thread.
  virtual absl::Status Fail(const absl::Status& failure) = 0;
};

/// One rank's handle of the job. Outlives its World.
/// \threadsafety the rank's thread only.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  /// Joins a group that this rank has not joined before. Does not wait for the
  /// other members, which join it too.
  /// \param key valid
  /// \param member this rank's index in `key`
  /// \param timeout the longest time that a member may keep the others waiting
  virtual absl::StatusOr<std::unique_ptr<ControlGroup>> Join(
      const GroupKey& key, int member, absl::Duration timeout) = 0;

  /// Returns the timeout of groups that have none of their own.
  virtual absl::Duration timeout() const = 0;

  /// Fails the job because of this rank, with `error` (not OK): poisons all
  /// ranks and ends all groups. Only the first failure of a job counts.
  virtual void FailRank(const absl::Status& error) = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONTROL_PLANE_H_
