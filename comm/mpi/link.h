// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_LINK_H_
#define CROSSHATCH_COMM_MPI_LINK_H_

/// \file
/// Link: messages between the processes of one job. Implemented by MPI
/// (run_mpi.cc), UCX (comm/ucx/ucx_link.h) and, in tests, threads of one
/// process (loopback_link_testutil.h).

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace crosshatch::internal {

/// An in-flight message. Its memory must not change while it is pending.
struct LinkRequest {
  uint64_t handle = 0;
  bool pending = false;
  /// The rank that it goes to or comes from.
  int peer = -1;
};

/// One process's end of the job's link.
/// \threadsafety the caller serialises calls, except Notify and Sleep.
/// \error any error leaves the link unusable.
class Link {
 public:
  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns this process's share of the machine's cores.
  virtual int core_share() const = 0;

  /// Starts to send a message. Messages to one rank are matched by tag, in the
  /// order in which both sides start them.
  /// \param tag kControlTag, or from 1 to max_tag() for data
  virtual absl::Status Send(int to, int tag, const void* data, int64_t bytes,
                            LinkRequest& request) = 0;

  /// \name Control messages
  /// Messages of any size. Small ones are sent without a waiting receiver.
  /// @{
  static constexpr int kControlTag = 0;
  absl::Status SendControl(int to, const std::string& message,
                           LinkRequest& request) {
    return Send(to, kControlTag, message.data(),
                static_cast<int64_t>(message.size()), request);
  }
  /// Receives the next message that has come; sets `from` to -1 if none has.
  virtual absl::Status TakeControl(int& from, std::string& message) = 0;
  /// @}

  /// Starts to receive data of a size that the sender gives, too.
  virtual absl::Status Receive(int from, int tag, void* data, int64_t bytes,
                               LinkRequest& request) = 0;
  virtual int max_tag() const = 0;

  /// Clears `pending` if the message is complete: sent data have been taken,
  /// received data are in place.
  virtual absl::Status Test(LinkRequest& request) = 0;
  /// Cancels a receive that no message has matched yet.
  virtual absl::Status CancelReceive(LinkRequest& request) = 0;
  /// Drops a message that will never complete. As far as the link can ensure
  /// it, its memory is no longer read or written: UCX closes the connection to
  /// the peer.
  virtual void Forget(LinkRequest& request) = 0;

  /// \name Sleeping until a message comes
  /// A notification may be lost or needless; waiters poll again soon.
  /// @{
  /// The lengths of the first and of the longest of several sleeps in a row.
  /// They are short if messages come without a notification.
  virtual std::chrono::nanoseconds first_sleep() const = 0;
  virtual std::chrono::nanoseconds longest_sleep() const = 0;
  /// Wakes `rank`, which may be this one, if messages do not.
  virtual void Notify(int rank) = 0;
  /// Returns the argument of Sleep. From now on notifications end it. The
  /// caller polls once more, then calls Sleep or Disarm.
  virtual uint32_t Arm() = 0;
  virtual void Disarm() = 0;
  /// Sleeps until a notification since Arm returned `seen`, at most `longest`.
  virtual void Sleep(uint32_t seen, std::chrono::nanoseconds longest) = 0;
  /// @}
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_LINK_H_
