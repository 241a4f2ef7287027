// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_LINK_H_
#define CROSSHATCH_COMM_MPI_LINK_H_

/// \file
/// Link: messages between the processes of one job, which is all that the
/// engine of processes needs. Behind it stands MPI (mpi_process.h), UCX
/// (comm/ucx/ucx_link.h), or in tests threads of one process
/// (loopback_link_testutil.h).

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace crosshatch::internal {

/// A message under way. Its memory stays as it is until it is no longer
/// pending.
struct LinkRequest {
  uint64_t handle = 0;
  bool pending = false;
  /// The rank that it goes to or comes from.
  int peer = -1;
};

/// One process's end.
/// \threadsafety calls are serialised by the caller, but for Ring and Sleep.
/// \error whatever fails here leaves the link unusable.
class Link {
 public:
  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Cores for this process, of those that the ones on this machine share.
  virtual int core_share() const = 0;

  /// \name Notes
  /// Small messages of any size. Those of one sender arrive in order; they need
  /// no receiver to be sent, if they are small.
  /// @{
  virtual absl::Status SendControl(int to, const std::string& message,
                                   LinkRequest& request) = 0;
  /// Takes the next message that has come; `from` becomes -1 if none has.
  virtual absl::Status TakeControl(int& from, std::string& message) = 0;
  /// @}

  /// \name Data
  /// A message goes where its sender, tag and size are awaited. Of one sender
  /// and tag, they are matched in the order in which both sides start them.
  /// \param tag from 1 to max_tag().
  /// @{
  virtual int max_tag() const = 0;
  virtual absl::Status Send(int to, int tag, const void* data, int64_t bytes,
                            LinkRequest& request) = 0;
  virtual absl::Status Receive(int from, int tag, void* data, int64_t bytes,
                               LinkRequest& request) = 0;
  /// @}

  /// Clears `pending` if the message is done: sent data have been taken,
  /// received ones are in place.
  virtual absl::Status Test(LinkRequest& request) = 0;
  /// Ends a receive that no message has met yet; one that has goes on.
  virtual absl::Status CancelReceive(LinkRequest& request) = 0;
  /// Drops a message that will never be done. This process then neither reads
  /// nor writes its memory any more, as far as the link can see to that: UCX
  /// closes the connection to the peer.
  virtual void Forget(LinkRequest& request) = 0;

  /// \name Sleeping until something comes
  /// A ring may be lost or needless; what waits looks again soon.
  /// @{
  /// The first of several sleeps in a row in which nothing comes, and the
  /// longest: short where messages come without a ring.
  virtual std::chrono::nanoseconds first_sleep() const = 0;
  virtual std::chrono::nanoseconds longest_sleep() const = 0;
  /// Wakes `rank` if it sleeps and no message does so; its own rank too.
  virtual void Notify(int rank) = 0;
  /// Returns what Sleep is to be given; from here on rings are heard. The
  /// caller looks for messages once more, then calls Sleep or DoNotSleep.
  virtual uint32_t Arm() = 0;
  virtual void Disarm() = 0;
  /// Returns at a ring since Listen gave `heard`, or after `longest`.
  virtual void Sleep(uint32_t seen, std::chrono::nanoseconds longest) = 0;
  /// @}
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_LINK_H_
