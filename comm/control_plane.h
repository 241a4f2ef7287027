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

/// What a gathering is in one order with.
enum class GatherOrder : uint8_t {
  /// With other gatherings of the rank's thread, and with no stream.
  kOfRank,
  /// With collectives, by what runs those.
  kOfStream,
};

/// One member's end of a group. It may be destroyed after the control plane and
/// the rank's context, and then uses neither. Its payloads are those of the
/// latest agreement, until Done.
class ControlGroup : public Payloads {
 public:
  /// Binds this member's collectives to `stream`. Called once, by the rank's
  /// thread, before the first of them.
  virtual void Bind(Stream& stream) = 0;

  /// Waits until all members have come to a collective, and compares their
  /// fingerprints (CheckAgreement). Called in the order of issue, by what runs
  /// the stream's tasks: on a CPU's queue by its worker, on a device's by the
  /// rank's thread.
  /// \param fingerprint valid until Done.
  /// \param offer called once, before the others are waited for: gives the room
  ///     for this member's payloads.
  /// \error why the group has failed: a difference, a member that does not
  ///     come, or a failure elsewhere.
  virtual absl::Status Agree(const Fingerprint& fingerprint,
                             absl::FunctionRef<void(PayloadRoom)> offer) = 0;
  /// This member's part of the collective that was agreed on has been issued.
  virtual void Done() = 0;

  /// Gathers the blobs of all members, by index; they may differ in size.
  /// \param what names what is gathered; compared as fingerprints are.
  /// \error why the group has failed, as of Agree.
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) = 0;

  /// Polls `plane` from now on, and aborts it when the job fails.
  /// \param blocks whether issuing to it returns when the data are in place,
  ///     which then has to be within the timeout.
  virtual void Watch(std::shared_ptr<DataPlane> /*plane*/, bool /*blocks*/) {}

  /// Ends the group on all members with `failure` (not OK), which poisons them,
  /// and with it the job. Only the first failure of a job counts.
  /// \returns what the group has failed with, for this member.
  /// \threadsafety any thread.
  virtual absl::Status Fail(const absl::Status& failure) = 0;
};

/// One rank's end. Outlives its World.
/// \threadsafety the rank's thread only.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  /// Returns this rank's end of a group that it has not joined before. All
  /// members come here, each when it gets there.
  /// \param member this rank's index in `key`, which is valid.
  virtual absl::StatusOr<std::unique_ptr<ControlGroup>> Join(
      const GroupKey& key, int member) = 0;

  /// How long a rank may keep others waiting.
  virtual absl::Duration timeout() const = 0;

  /// Fails the job because of this rank, with `error` (not OK): all ranks are
  /// poisoned and all groups end. Only the first failure of a job counts.
  virtual void FailRank(const absl::Status& error) = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONTROL_PLANE_H_
