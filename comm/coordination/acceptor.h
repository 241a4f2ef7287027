// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_ACCEPTOR_H_
#define CROSSHATCH_COMM_COORDINATION_ACCEPTOR_H_

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace crosshatch::coordination {

/// Listens on a host's addresses and passes on the connections that begin with
/// the HTTP/2 preface, as gRPC's do. Closes all others: those that begin with
/// something else at once, silent ones after ten seconds. At most 128
/// connections wait here at a time, so strangers cannot use up the process's
/// file descriptors.
class Acceptor {
 public:
  /// \param host a name or an address; an IPv6 address may have brackets. Or a
  ///     Unix socket (wire.h).
  /// \param port 0: any that is free.
  /// \param take called on the acceptor's thread; owns the connection.
  /// \error kUnavailable if an address is not available on that port;
  ///     kResourceExhausted without a thread.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(
      const std::string& host, int port, std::function<void(int fd)> take);

  /// Stops listening. `take` is not called once this has returned.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }

 private:
  struct Waiting {
    int fd;
    int64_t since_ms;
  };

  explicit Acceptor(std::function<void(int fd)> take);
  absl::Status Bind(const std::string& host, int port);
  /// Listens on one address. Returns 0 or the error's number.
  int Bind(const sockaddr_storage& address, socklen_t size);
  void Run();
  void AcceptFrom(int listener);
  /// Returns whether the connection stays here.
  bool Keeps(const Waiting& waiting);
  void CloseLate();

  const std::function<void(int fd)> take_;
  int port_ = 0;
  int end_ = -1;  // An eventfd that ends the thread.
  std::vector<int> listeners_;
  std::vector<Waiting> waiting_;  // The oldest first.
  std::thread thread_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_ACCEPTOR_H_
