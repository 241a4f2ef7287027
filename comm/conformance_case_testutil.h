// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_CASE_TESTUTIL_H_
#define CROSSHATCH_COMM_CONFORMANCE_CASE_TESTUTIL_H_

/// \file
/// One collective of the conformance suite with generated data, and its
/// expected result.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/conformance_testutil.h"

namespace crosshatch::internal {

enum class ListLayout {
  kContiguous,
  /// Cut into segments, some of them empty, in no order of addresses.
  kSplit,
  /// Runs with gaps between them.
  kStrided,
  /// Contiguous; send and recv share memory as far as the contract allows.
  kInPlace,
};

struct CollectiveCase {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1.0;
  int root = 0;
  /// Numbers of elements. all_reduce and broadcast: counts[0]; all_gather: sent
  /// by rank r; reduce_scatter: received by rank r; all_to_all: sent by rank r
  /// to rank s, at r * size + s.
  std::vector<int64_t> counts;
  ListLayout layout = ListLayout::kContiguous;
  /// Values whose sums are not exact, instead of small integers.
  bool reals = false;
  uint64_t seed = 0;
  /// The collective's label; empty: Describe().
  std::string label;

  std::string Describe() const;
};

/// A running case on one rank: its memory, its collective, its check.
class CollectiveRun {
 public:
  CollectiveRun(const ConformanceEngine& engine, World& world,
                Communicator& comm, const CollectiveCase& c);
  ~CollectiveRun();
  CollectiveRun(CollectiveRun&&) noexcept;

  absl::Status Issue(Stream& stream);
  /// Compares the received data with the expectation, and the memory between
  /// the lists with its earlier contents. The stream has passed the collective.
  /// A dry run compares nothing.
  absl::Status Check() const;

 private:
  class Arena;
  struct Memory;

  const ConformanceEngine* engine_;
  Communicator* comm_;
  CollectiveCase case_;
  Collective collective_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_CASE_TESTUTIL_H_
