// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_NCCL_COMMUNION_H_
#define CROSSHATCH_EMULATION_NCCL_COMMUNION_H_

/// \file
/// What the ranks of an emulated communicator of NCCL do with one another,
/// behind its functions (nccl.h).

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

/// One call of one rank.
struct Call {
  CallKind kind = CallKind::kSend;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  /// Of a send or a receive; the root of a broadcast.
  int peer = 0;

  size_t bytes() const { return count * NcclBytes(type); }
};

/// What the ranks of a communicator share: who is there, and which calls have
/// come. Calls are done where they fit one another, a rank's collectives and
/// each pair's sends in order; what does not fit waits, and all after it.
/// \threadsafety any thread.
class Communion {
 public:
  explicit Communion(int size);

  int size() const { return size_; }

  void Join(int rank);
  bool AllJoined() const;
  /// \returns false: another rank is on the device already.
  bool TakeDevice(int device);

  /// Of `rank`: returns when all of `calls` are done or `is_aborted`, which
  /// Wake has it look at.
  void Run(int rank, const std::vector<Call>& calls,
           const std::atomic<bool>& is_aborted);
  /// Returns when `is_aborted`.
  void AwaitAbort(const std::atomic<bool>& is_aborted);
  /// Threads that wait look again.
  void Wake();

  /// `rank` has come to its split number `split`.
  void Split(int64_t split, int rank, int color, int key);
  struct Child {
    std::shared_ptr<Communion> communion;  ///< Null: of no color.
    int rank = 0;
  };
  /// What it has become for `rank`; nullopt before all have come.
  std::optional<Child> ChildOf(int64_t split, int rank);

 private:
  /// A call that its stream has come to.
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

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Division> splits_;
  std::set<int> joined_;
  std::set<int> devices_;
  /// By sender and receiver.
  std::map<std::pair<int, int>, std::deque<ArrivalPtr>> sent_;
  std::map<std::pair<int, int>, std::deque<ArrivalPtr>> awaited_;
  /// By rank.
  std::vector<std::deque<ArrivalPtr>> collectives_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_NCCL_COMMUNION_H_
