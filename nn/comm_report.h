// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_COMM_REPORT_H_
#define CROSSHATCH_NN_COMM_REPORT_H_

/// \file
/// What a rank communicates, by module, op and collective.
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
  /// That this rank takes from others (CommunicatorStats).
  int64_t bytes = 0;
};

/// Collectives that differ in none of the following.
struct CommEntry {
  /// Name of the innermost module that ran, from the module of the report;
  /// empty for that one, nullopt for what is issued outside of it.
  std::optional<std::string> module;
  /// In the backward pass, recomputation included.
  bool backward = false;
  CommOrigin::Kind origin = CommOrigin::Kind::kOther;
  /// The op that made the rank communicate; the collective's label where it was
  /// no op of a distributed tensor.
  std::string cause;
  /// "all_gather"
  std::string collective;
  /// The mesh axes, or what else the group is called.
  std::string group;

  CommCount count;
};

/// Counts from its making to its end, as the rank's event sink; events go on to
/// the sink that was there before. Without one, a program pays nothing.
///
/// A module is known by its calls in forward; backward, by the ops that it ran
/// there and the parameters that it has. What FSDP issues ahead of time counts
/// for the module that runs then. Reports nest: the last one made is the first
/// to go, and none while a module runs. \threadsafety the rank's thread only.
class CommReport final : public EventSink {
 public:
  /// Reports by `root` and all modules below; one that is destroyed before the
  /// report keeps its counts.
  explicit CommReport(Module& root);
  ~CommReport() override;
  CommReport(const CommReport&) = delete;
  CommReport& operator=(const CommReport&) = delete;

  void Write(const LogEvent& event) override;

  /// In the order of their first collective.
  const std::vector<CommEntry>& entries() const { return entries_; }
  CommCount Total() const;
  /// Counts what a module and all below it move, forward and backward.
  CommCount InModule(const std::string& name) const;
  /// They sum what has one CommEntry::cause, or one CommEntry::collective.
  std::map<std::string, CommCount> ByCause() const;
  std::map<std::string, CommCount> ByCollective() const;

  /// Counts from zero.
  void Reset() { entries_.clear(); }

  /// A line for each module with what it and those below it communicate, in the
  /// order of NamedModules, and below it a line for each of its own entries:
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
  // Indices into calls_ of those under way, the innermost last.
  std::vector<size_t> under_way_;
  std::vector<CommEntry> entries_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_COMM_REPORT_H_
