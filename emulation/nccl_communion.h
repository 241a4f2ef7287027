// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_NCCL_COMMUNION_H_
#define CROSSHATCH_EMULATION_NCCL_COMMUNION_H_

/// \file
/// The shared state of the ranks of an emulated NCCL communicator (nccl.h).

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "crosshatch/emulation/nccl.h"
#include "crosshatch/emulation/nccl_arithmetic.h"

namespace crosshatch::emulation {

enum class CallKind : uint8_t {
  kSend,
  kRecv,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
};

/// One rank's call.
struct Call {
  CallKind kind = CallKind::kSend;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  /// The peer of a send or a receive; the root of a broadcast.
  int peer = 0;

  size_t bytes() const { return count * NcclBytes(type); }
};

/// The traffic between hosts of all communions (NcclCounts).
struct HostTraffic {
  int64_t bytes = 0;
  int64_t messages = 0;
};
HostTraffic TrafficBetweenHosts();

/// The state that the ranks of a communicator share: ranks that have joined,
/// and pending calls. Matching calls are executed, a rank's collectives and
/// each pair's sends in order. A mismatched call waits, and so does what
/// follows it.
/// \threadsafety Any thread may call any function.
class Communion {
 public:
  explicit Communion(int size);

  int size() const { return size_; }

  void Join(int rank, int host = 0);
  bool AllJoined() const;
  /// \returns false if another rank uses the device.
  bool TakeDevice(int device);

  /// Returns when all of `calls` of `rank` are complete or `is_aborted` is set.
  /// Wake makes it check the latter.
  void Run(int rank, const std::vector<Call>& calls,
           const std::atomic<bool>& is_aborted);
  /// Returns when `is_aborted` is set.
  void AwaitAbort(const std::atomic<bool>& is_aborted);
  /// Makes waiting threads check again.
  void Wake();

  void Split(int64_t split, int rank, int color, int key);
  struct Child {
    std::shared_ptr<Communion> communion;  ///< Null: of no color.
    int rank = 0;
  };
  /// Returns the split's result for `rank`, or nullopt until all ranks have
  /// joined.
  std::optional<Child> ChildOf(int64_t split, int rank);

 private:
  /// A call that its stream has reached.
  struct Arrival {
    Call call;
    bool done = false;
  };
  using ArrivalPtr = std::shared_ptr<Arrival>;
  struct Division {
    struct Says {
      int color = 0;
      int key = 0;
    };
    std::map<int, Says> came;
    std::map<int, std::shared_ptr<Communion>> made;
  };

  void Post(int rank, const ArrivalPtr& arrival);
  void MatchCollectives();
  void CountBetweenHosts(const Call& collective) const;

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Division> splits_;
  std::map<int, int> joined_;  ///< The hosts of ranks.
  std::set<int> devices_;
  /// By sender and receiver.
  std::map<std::pair<int, int>, std::deque<ArrivalPtr>> sent_;
  std::map<std::pair<int, int>, std::deque<ArrivalPtr>> awaited_;
  /// By rank.
  std::vector<std::deque<ArrivalPtr>> collectives_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_NCCL_COMMUNION_H_
