// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_COMM_REPORT_H_
#define CROSSHATCH_NN_COMM_REPORT_H_

/// \file
/// CommReport: counts a rank's communication by module, op and collective.
///
///     nn::CommReport report(model);
///     ... one step ...
///     std::cout << report.ToString();

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/node.h"

namespace crosshatch::nn {

struct CommCount {
  int64_t collectives = 0;
  /// Received by this rank (CommunicatorStats).
  int64_t bytes = 0;
};

/// Collectives that agree in all of the following.
struct CommEntry {
  /// The name of the innermost running module, from the module of the report;
  /// empty for that one, nullopt outside of it.
  std::optional<std::string> module;
  /// Whether in the backward pass, including recomputation.
  bool backward = false;
  CommOrigin::Kind origin = CommOrigin::Kind::kOther;
  /// The op of a distributed tensor that communicated; otherwise the
  /// collective's label.
  std::string cause;
  /// "all_gather"
  std::string collective;
  /// The mesh axes, or another name of the group.
  std::string group;

  CommCount count;
};

/// Counts from its construction to its destruction, as the rank's event sink;
/// events go on to the sink that was set before. Costs nothing if unused.
///
/// A collective in forward belongs to the module that runs; in backward, to the
/// one that ran the op in forward or that has the parameter. A prefetch of FSDP
/// belongs to the module that runs then. Reports nest: destroy the last one
/// first, and none while a module runs.
/// \threadsafety the rank's thread only.
class CommReport final : public EventSink {
 public:
  /// Reports for `root` and all modules below. A module that is destroyed
  /// before the report keeps its counts.
  explicit CommReport(Module& root);
  ~CommReport() override;
  CommReport(const CommReport&) = delete;
  CommReport& operator=(const CommReport&) = delete;

  void Write(const LogEvent& event) override;

  /// Returns the entries in the order of their first collective.
  const std::vector<CommEntry>& entries() const { return entries_; }
  CommCount Total() const;
  /// Returns the sum over a module and all below it, forward and backward.
  CommCount InModule(const std::string& name) const;
  /// Return sums by CommEntry::cause and by CommEntry::collective.
  std::map<std::string, CommCount> ByCause() const;
  std::map<std::string, CommCount> ByCollective() const;

  /// Counts from zero.
  void Reset() { entries_.clear(); }

  /// Returns a line for each module with the sum over it and those below it, in
  /// the order of NamedModules, followed by a line for each of its own entries:
  ///
  ///     2 collectives, 64 bytes
  ///     (root): 2 collectives, 64 bytes
  ///       forward   implicit exp: all_reduce over tp: 1 collective, 32 bytes
  ///     down: 1 collective, 32 bytes
  ///       backward  implicit matmul: all_gather over tp: 1 collective, ...
  std::string ToString() const;

 private:
  // A call of a module: the nodes of the backward pass that it made have
  // numbers in between.
  struct Call {
    uint64_t begin;
    uint64_t end;
    size_t module;
  };

  void Enter(size_t module);
  void Leave();
  /// Index of the module whose call made the node of that number.
  std::optional<size_t> ModuleOfNode(uint64_t sequence) const;
  /// Finds the first module with the parameter that `leaf` accumulates for.
  std::optional<size_t> ModuleOfLeaf(const Node& leaf) const;
  CommEntry EntryOf(const LogEvent& event) const;

  EventSink* const next_;
  std::vector<NamedModule> modules_;
  // Of each module, which may go before the report does.
  std::vector<std::shared_ptr<const ModuleLife>> lives_;
  // The hooks on each module.
  std::vector<std::pair<int, int>> hooks_;
  std::vector<Call> calls_;
  // Indices in calls_ of the running calls, the innermost last.
  std::vector<size_t> under_way_;
  std::vector<CommEntry> entries_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_COMM_REPORT_H_
