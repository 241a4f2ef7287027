// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_POLLER_H_
#define CROSSHATCH_COMM_MPI_POLLER_H_

/// \file
/// Poller: lets threads of one process wait for messages. One of them polls on
/// behalf of all, for a moment busily and then asleep until a notification; the
/// others sleep. So a process that waits leaves its core to others.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "crosshatch/comm/mpi/link.h"

namespace crosshatch::internal {

class Poller {
 public:
  /// \param link outlives this.
  /// \param take_messages receives the messages that have come and returns
  ///     whether there were any; called with the lock held.
  Poller(Link& link, std::function<bool()> take_messages);

  /// Waits until done() returns true. It tests requests, with the lock held,
  /// possibly on another thread, after anything may have come.
  void Wait(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done);

  /// Polls once, unless another thread does.
  /// \pre The lock is held.
  void LookOnce();

 private:
  struct Waiter {
    absl::FunctionRef<bool()> done;
    bool finished = false;
    std::condition_variable wake;
  };

  /// Polls until `self` has finished.
  void Lead(std::unique_lock<std::mutex>& lock, Waiter& self);
  /// Polls once; returns whether anything has come or finished.
  bool Look();

  Link& link_;
  const std::function<bool()> take_messages_;
  std::vector<Waiter*> waiters_;
  bool has_leader_ = false;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_POLLER_H_
