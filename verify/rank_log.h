// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_RANK_LOG_H_
#define CROSSHATCH_VERIFY_RANK_LOG_H_

/// \file
/// RankLog: everything that one rank issues in a dry run, in the order of issue
/// by its thread: work with the memory it accesses, collectives, events,
/// waits and leases. A value: the checks read logs, and tests change them.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/reduce_op.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::verify {

/// An access of work to the bytes [begin, end). Addresses are those of the
/// recorder, which never uses one twice.
struct LoggedAccess {
  int64_t begin = 0;
  int64_t end = 0;
  bool writes = false;
  /// Of a read: the work writes an elementwise function of these elements, and
  /// multiplies them by `factor`.
  bool carries = false;
  double factor = 1;
};

struct LoggedEvent {
  enum class Kind : uint8_t {
    kWork,        ///< A kernel.
    kCollective,  ///< Collective `id`.
    kRecord,    ///< Point `id` is the one after all work of the stream so far.
    kWait,      ///< The stream waits for point `id`.
    kHostWait,  ///< The rank's thread waits for point `id`.
    kExchange,  ///< The rank's thread exchanges values within group `id`.
    kLease,     ///< Lease `id` begins, on its home stream.
    kUse,       ///< Lease `id` does not end before `point`.
    kRelease,   ///< Lease `id` ends.
  };
  Kind kind = Kind::kWork;
  /// Of work: the outputs' old content is a summand.
  bool accumulates = false;
  /// Of work: writes zeros.
  bool zeros = false;
  int stream = -1;
  int64_t id = -1;
  int64_t point = -1;
  /// Index in RankLog::texts: the kernel and the module, or a label.
  int text = -1;
  uint32_t first_access = 0;
  uint32_t num_accesses = 0;
  /// Of work that writes random values: a hash of the name of the parameter and
  /// of the box of its elements. 0: none.
  uint64_t origin = 0;
};

struct LoggedGroup {
  std::string name;  ///< The mesh axis, or axes joined by ",".
  std::vector<int> world_ranks;
  int member = 0;  ///< This rank's index in them.
  std::string stream;
};

struct LoggedCollective {
  int group = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  int root = 0;
  std::string label;
  /// Elements of each list.
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
  int64_t bytes = 0;  ///< BytesReceived.
  /// Of each access of the event: the index of its list in send or recv.
  std::vector<int> list_of_access;
};

struct LoggedLease {
  int64_t begin = 0;
  int64_t bytes = 0;
  MemoryClass memory_class = MemoryClass::kActivation;
  int stream = 0;
  int text = -1;  ///< Where the lease began.
  bool released = false;
};

struct RankLog {
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> streams;  ///< Stream 0 is the compute stream.
  std::vector<LoggedEvent> events;
  std::vector<LoggedAccess> accesses;
  std::vector<LoggedGroup> groups;
  std::vector<LoggedCollective> collectives;
  std::vector<LoggedLease> leases;  ///< Ascending addresses.
  std::vector<std::string> texts;
  int64_t points = 0;
  /// Kernels of the program's own ops (LaunchKernel), whose operands are
  /// unknown.
  int64_t unknown_kernels = 0;

  /// Returns the lease that contains `address`; -1 if there is none.
  int64_t LeaseAt(int64_t address) const;
  /// Returns e.g. "all_gather 'layers.0' over fsdp on fsdp_all_gather (event
  /// 17)".
  std::string Describe(int64_t event) const;
  std::string DescribeLease(int64_t lease) const;
  /// Returns a hash of everything but rank numbers and addresses. Ranks with
  /// equal hashes issue the same, up to the ranks that they address.
  uint64_t Digest() const;
};

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_RANK_LOG_H_
