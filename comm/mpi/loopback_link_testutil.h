// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_LOOPBACK_LINK_TESTUTIL_H_
#define CROSSHATCH_COMM_MPI_LOOPBACK_LINK_TESTUTIL_H_

/// \file
/// Links between threads of one process, to test the engine of processes under
/// ThreadSanitizer, with processes that die and late messages.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/mpi/notification.h"

namespace crosshatch::internal {

struct LoopbackOptions {
  int size = 1;
  /// Larger messages complete when they are matched, as with MPI.
  int64_t eager_bytes = 64;
  /// If not 0, receives find messages late, at random.
  uint64_t delay_seed = 0;
  /// Ranks from here on are on another machine and cannot be notified.
  int num_near = 1 << 30;
  /// This rank is lost when it first sends data.
  int dies_at_first_send = -1;
  /// Sending data does not return on this rank until Unblock.
  int blocks_at_send = -1;
};

/// The shared state of the links of one job. Must outlive them.
class LoopbackWire {
 public:
  explicit LoopbackWire(const LoopbackOptions& options);

  std::unique_ptr<Link> End(int rank);

  /// Holds messages from one rank to another until Release.
  void Hold(int from, int to);
  void Release();
  /// Returns the number of messages that Hold keeps.
  int num_held() const;

  /// Returns whether a call of the link blocks.
  bool is_blocked() const;
  void Unblock();

  /// Returns whether `rank` is disconnected.
  bool lost(int rank) const;
  /// Returns the number of data messages that were sent and not matched.
  int num_unmet() const;
  /// Returns the number of messages in flight to ranks that are not lost.
  int num_unread() const;

 private:
  friend class LoopbackLink;

  /// A data message, from either side.
  struct Message {
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
    std::string eager;
    bool done = false;
    bool cancelled = false;
  };
  struct Key {
    int from, to, tag;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  LoopbackOptions options_;
  mutable std::mutex mutex_;
  std::vector<std::deque<std::pair<int, std::shared_ptr<std::string>>>>
      controls_;
  std::map<Key, std::deque<std::shared_ptr<Message>>> sent_;
  std::map<Key, std::deque<std::shared_ptr<Message>>> awaited_;
  std::vector<bool> lost_;
  std::pair<int, int> held_{-1, -1};
  std::vector<Notification> notifications_;
  bool is_blocked_ = false;
  std::condition_variable unblocked_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_LOOPBACK_LINK_TESTUTIL_H_
