// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_JOB_LOG_H_
#define CROSSHATCH_VERIFY_JOB_LOG_H_

/// \file
/// JobLog: the logs of a job. One log may stand for many ranks, a class.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/verify/rank_log.h"

namespace crosshatch::verify {

struct JobLog {
  explicit JobLog(MeshLayout layout) : mesh(std::move(layout)) {}

  MeshLayout mesh;  ///< All ranks of the job.
  std::vector<RankLog> logs;
  /// By world rank: the index in `logs` of its class.
  std::vector<int> log_of;
  /// By world rank, of those that were run: for each label of an all-gather, a
  /// hash of the elements that the rank contributes (LabelOrigins).
  std::map<int, std::map<std::string, uint64_t>> origins;

  const RankLog& LogOf(int world_rank) const {
    return logs[static_cast<size_t>(log_of[static_cast<size_t>(world_rank)])];
  }
  /// Returns the group of `world_rank`, a member of group `group` of `log`,
  /// that corresponds to it; nullopt if there is none.
  std::optional<int> GroupOf(const RankLog& log, int group,
                             int world_rank) const;
};

/// Returns for each label of an all-gather a hash of the names and boxes of the
/// parameters that the rank sends; 0 if their initial values are not random.
std::map<std::string, uint64_t> LabelOrigins(const RankLog& log);

/// An event of a rank; -1: none.
struct EventOfRank {
  int rank = -1;
  int64_t event = -1;
};

/// Why a program is not correct.
struct Finding {
  enum class Kind : uint8_t {
    kMismatch,      ///< Ranks of a group issue different collectives.
    kRace,          ///< Two accesses of which one is a write are not ordered.
    kLifetime,      ///< Memory is used outside of its lease, or released early.
    kCircularWait,  ///< Ranks and streams wait for one another.
    kLeak,          ///< Memory is not released.
    kStale,         ///< Gathered parameters are older than the shards.
    kGradient,      ///< A gradient has a wrong sum or divisor.
    kBytes,         ///< Bytes differ from the formula.
  };
  Kind kind;
  EventOfRank first = {};
  EventOfRank second = {};
  std::string message;
  /// The edge that would make the program right.
  std::string missing;
};

/// Returns "mismatch", "race", ...
const char* Name(Finding::Kind kind);

/// What CheckOrder returns.
struct OrderResult {
  std::vector<Finding> findings;
  /// Waits that other waits cover: without them all work is ordered alike.
  std::vector<int64_t> superfluous_waits;
  int64_t pairs = 0;  ///< Pairs of accesses on two streams.
};

/// Checks that accesses to memory are ordered by events, lie within leases, and
/// that every lease ends.
OrderResult CheckOrder(const RankLog& log);

/// Checks that the members of each group issue the same collectives.
std::vector<Finding> CheckMatching(const JobLog& job);

/// Checks that no interleaving of streams and ranks blocks. A collective blocks
/// its stream until all members have come to it.
std::vector<Finding> CheckProgress(const JobLog& job);

/// What a gradient should be.
struct GradientRule {
  /// The axes of the mesh that split the batch.
  std::vector<int> batch_axes;
  double divisor = 1;
};

/// Checks every gradient with which the rank of `log` updates a parameter or
/// the state of an optimizer.
std::vector<Finding> CheckGradients(const JobLog& job, const RankLog& log,
                                    const GradientRule& rule);

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_JOB_LOG_H_
