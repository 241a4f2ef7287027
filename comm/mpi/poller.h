// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_POLLER_H_
#define CROSSHATCH_COMM_MPI_POLLER_H_

/// \file
/// Poller: threads of one process that wait for messages. One of them looks for
/// all, for a moment busily and then asleep until a peer rings; the others
/// sleep. So a process that waits leaves its core to those that compute.

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
  /// \param take_messages takes what has come; called with the lock held.
  /// Returns
  ///     whether anything had.
  Poller(Link& link, std::function<bool()> take_messages);

  /// Returns when done() is true. It is called with the lock held, maybe on
  /// another thread, after whatever may have come, and moves its requests on.
  void Wait(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done);

  /// Looks once, unless somebody does anyway. The lock is held.
  void LookOnce();

 private:
  struct Waiter {
    absl::FunctionRef<bool()> done;
    bool finished = false;
    std::condition_variable wake;
  };

  /// Looks until `self` has finished.
  void Lead(std::unique_lock<std::mutex>& lock, Waiter& self);
  /// Returns whether anything has come or finished.
  bool Look();

  Link& link_;
  const std::function<bool()> take_messages_;
  std::vector<Waiter*> waiters_;
  bool has_leader_ = false;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_POLLER_H_
