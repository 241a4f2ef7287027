// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_SUITE_TESTUTIL_H_
#define CROSSHATCH_COMM_CONFORMANCE_SUITE_TESTUTIL_H_

/// \file
/// What the parts of the conformance suite share: a rank, and the registration
/// of a test.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/comm/conformance_case_testutil.h"
#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// One rank of a conformance test, with a group of all ranks of its world.
class ConformanceRank {
 public:
  ConformanceRank(const ConformanceEngine& engine, World& world)
      : engine_(engine),
        world_(world),
        comm_(world.Group("all", world.AllRanks(), "comm").value()) {}

  const ConformanceEngine& engine() const { return engine_; }
  World& world() const { return world_; }
  RankContext& context() const { return world_.context(); }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  Communicator& comm() const { return *comm_; }
  Stream& stream() const { return context().SideStream("comm"); }

  /// Issues a barrier on the group of all ranks.
  absl::Status IssueBarrier(const std::string& label) const {
    return Barrier(comm(), stream(), label);
  }
  /// Returns a collective of the group of all ranks, or of `comm`.
  CollectiveRun Prepare(const CollectiveCase& c) const {
    return Prepare(c, *comm_);
  }
  CollectiveRun Prepare(const CollectiveCase& c, Communicator& comm) const {
    return CollectiveRun(engine_, world_, comm, c);
  }
  /// Issues `c` on the group of all ranks, waits for it and checks its result.
  absl::Status Run(const CollectiveCase& c) const;

 private:
  const ConformanceEngine& engine_;
  World& world_;
  const std::shared_ptr<Communicator> comm_;
};

/// One rank's part of a test.
using Body = std::function<absl::Status(ConformanceRank& rank)>;
using EnginePtr = std::shared_ptr<const ConformanceEngine>;

inline constexpr CollectiveKind kDataKinds[] = {
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
    CollectiveKind::kBroadcast};

/// Returns the number of counts of a case for `n` ranks.
int NumCounts(CollectiveKind kind, int n);

/// Returns one minute: the timeout of jobs in which nobody is late.
inline JobOptions InTime() { return {.timeout = absl::Minutes(1)}; }

/// Runs `body` on all ranks of a job and returns its result.
absl::Status RunRanks(const ConformanceEngine& engine, int ranks,
                      const Body& body, const JobOptions& options = InTime());

/// Registers a test whose name ends with "/<ranks>".
void Register(const EnginePtr& engine, const std::string& name, int ranks,
              std::function<void()> test);
/// Registers a test that runs `body` on all ranks and expects success.
void RegisterJob(const EnginePtr& engine, const std::string& name, int ranks,
                 Body body, const JobOptions& options = InTime());

/// \name Parts of the suite, for one number of ranks
/// @{
/// Registers the tests of one rank's view: refused, counted, logged and skipped
/// collectives, and one stream per communicator.
void RegisterContract(const EnginePtr& engine, int ranks);
/// Registers exchanges and faults.
void RegisterFailures(const EnginePtr& engine, int ranks);
/// @}

/// Returns a shared copy of `engine`, with a default for `copy`.
EnginePtr Shared(ConformanceEngine engine);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_SUITE_TESTUTIL_H_
