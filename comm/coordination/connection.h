// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_CONNECTION_H_
#define CROSSHATCH_COMM_COORDINATION_CONNECTION_H_

/// \file
/// TCP connections that carry messages.

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/messages.pb.h"

namespace crosshatch::coordination {

constexpr size_t kMostMessageBytes = size_t{4} << 20;

/// A file descriptor, which the object closes.
class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// A message as it is sent: its length, in four bytes with the highest first,
/// and its bytes. All connections that it is sent on share it.
using Frame = std::shared_ptr<const std::string>;
Frame MakeFrame(const google::protobuf::MessageLite& message);

/// One end of a connection that carries frames. Never blocks.
/// \threadsafety one thread at a time.
class Connection {
 public:
  /// \param most bytes of a message that is received.
  explicit Connection(File socket, size_t most = kMostMessageBytes);

  int fd() const { return socket_.fd(); }
  /// Queues `frame` and sends what the socket takes.
  void Send(Frame frame);
  /// Sets how many bytes the messages to come may have.
  void set_most(size_t most) { most_ = most; }
  /// Sends more of what is queued.
  void Flush();
  bool has_queued() const { return !queued_.empty(); }
  /// Receives pending bytes and calls `take` with each complete message. Stops
  /// if `take` returns false, which means that the caller closes the
  /// connection. Receives a bounded number of bytes per call, so that no sender
  /// occupies the thread.
  /// \returns whether the connection lasts: the other end has neither closed it
  ///     nor sent a message that is too long.
  bool Receive(absl::FunctionRef<bool(absl::string_view)> take);
  /// Returns whether the last Receive stopped before the socket was empty.
  bool has_more() const { return has_more_; }
  /// Returns the other end's IP address; empty without one.
  std::string PeerHost() const;

 private:
  File socket_;
  std::deque<Frame> queued_;
  size_t num_sent_ = 0;  // Bytes of the first of them.
  std::string received_;
  size_t most_;
  bool has_more_ = false;
};

/// Listens on the addresses of `host`, once on each, and on no other. Of a name
/// with several addresses, one need be available: the host may lack IPv6.
/// \param host names or addresses of one host, separated by commas; an IPv6
///     address may have brackets.
/// \param port 0: any that is free; set to the port.
/// \error kUnavailable if the port is in use on an address, or one is not this
///     host's; kResourceExhausted without a file descriptor.
absl::StatusOr<std::vector<File>> Listen(const std::string& host, int& port);

/// Connects to an address of `host`, the first on which a process listens, and
/// retries until there is one.
/// \param host as of Listen.
/// \error kDeadlineExceeded if there is none until `deadline`, of the system's
///     clock.
absl::StatusOr<File> Dial(const std::string& host, int port,
                          absl::Time deadline);

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_CONNECTION_H_
