// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_ISSUE_LOG_TESTUTIL_H_
#define CROSSHATCH_TENSOR_ISSUE_LOG_TESTUTIL_H_

/// \file
/// IssueLog: what one rank issued to its streams and leased, in order, as a
/// value, and the order of the work that follows from it. Nothing here runs. A
/// test uses it to distinguish a fault that cannot be found, because it changes
/// nothing, from one that was missed.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/tensor/allocator.h"

namespace crosshatch {

/// One entry of the log.
struct Issue {
  enum class Kind : uint8_t {
    kTask,      ///< Work.
    kRecord,    ///< `point` is the one after all work so far.
    kWait,      ///< Wait `index`, for `point`.
    kHostWait,  ///< The rank's thread waits for `point`.
    kLease,     ///< Lease `index` begins.
    kUse,       ///< Lease `index` ends, and not before `point`.
    kReturn,    ///< Lease `index` ends.
  };
  Kind kind;
  int stream = 0;
  int64_t index = -1;
  int64_t point = -1;
};

/// A description of a wait, for messages and for selecting one.
struct LoggedWait {
  std::string stream;
  std::string waits_for;  ///< The stream of the point.
  bool for_memory;        ///< The allocator's, on behalf of a new lease.
  std::string where;      ///< What the runtime had logged last.
};

struct LoggedLease {
  std::string stream;
  MemoryClass memory_class;
  int64_t bytes;
  const std::byte* data;
  bool used_elsewhere = false;  ///< On another stream, as its owner declared.
  std::string where;
};

struct IssueLog {
  std::vector<std::string> streams;
  std::vector<Issue> issues;
  std::vector<LoggedWait> waits;
  std::vector<LoggedLease> leases;

  /// Returns whether all work is ordered alike without wait `index`: other
  /// waits cover it, whatever the streams do.
  bool IsCovered(int64_t index) const;

  /// Returns whether the next lease of the memory of lease `index` is ordered
  /// after all its declared uses, and not before its return. For a run in which
  /// the lease ended early or forgot its uses, this shows whether that can have
  /// an effect.
  bool NextLeaseIsOrdered(int64_t index) const;

  /// The last work before the point that wait `index` waits for: its stream
  /// and its number there, from 1.
  struct Work {
    int stream = -1;
    int64_t number = 0;
  };
  Work AwaitedBy(int64_t index) const;

  std::string DescribeWait(int64_t index) const;
  std::string DescribeLease(int64_t index) const;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_ISSUE_LOG_TESTUTIL_H_
