// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_RUNTIME_H_
#define CROSSHATCH_DTENSOR_DTENSOR_RUNTIME_H_

/// \file
/// What a rank keeps for its distributed tensors: layouts by number, plans,
/// rules of the user's ops, and counts. It hangs on the RankContext.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/dtensor/op_rule.h"
#include "crosshatch/dtensor/redistribute_counts.h"
#include "crosshatch/dtensor/redistribute_executor.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

class DTensorRuntime;

/// A layout with a number of its own: equal layouts of a rank are one object,
/// so that caches compare and hash a number. Lives as long as the rank.
struct InternedLayout {
  DTensorRuntime& runtime;
  int64_t id;
  Layout layout;
  /// This rank's place on the layout's mesh.
  MeshCoordinate here;
};

/// A vector of numbers as a key: looked up by span, without a copy.
struct NumbersHash {
  using is_transparent = void;
  size_t operator()(absl::Span<const int64_t> numbers) const {
    return absl::HashOf(numbers);
  }
};
struct NumbersEqual {
  using is_transparent = void;
  bool operator()(absl::Span<const int64_t> a,
                  absl::Span<const int64_t> b) const {
    return a == b;
  }
};
template <typename T>
using MapByNumbers = absl::flat_hash_map<absl::InlinedVector<int64_t, 16>, T,
                                         NumbersHash, NumbersEqual>;

/// How a call of an op runs (dtensor_handler.cc).
struct DispatchPlan;

/// \threadsafety the rank's thread only.
class DTensorRuntime final : public RankContext::Extension {
 public:
  static DTensorRuntime& Current();

  /// A program whose shapes never repeat must not grow the caches for ever.
  static constexpr size_t kMaxPlans = 1 << 16;

  DTensorRuntime();
  ~DTensorRuntime() override;

  /// Checks that this rank is on the layout's mesh.
  const InternedLayout& Intern(const Layout& layout);

  /// The plan for a tensor of global shape `shape`, worked out for this rank.
  /// Valid until the next call. Checks that the layouts fit each other and the
  /// shape.
  const PreparedPlan& Plan(const InternedLayout& from, const InternedLayout& to,
                           ShapeView shape, int64_t element_size);

  /// Executes a plan, counts it and logs it. `for_op` is the op whose input it
  /// is; null for one that the user asked for.
  Tensor Redistribute(const PreparedPlan& plan, const Tensor& local,
                      const DeviceMesh& mesh, const char* for_op);

  /// The rule that the user registered for an op; null if none.
  const OpRuleEntry* UserRule(const OpInfo& info) const;
  void AddUserRule(const OpInfo& info, OpRuleEntry entry);

  MapByNumbers<std::unique_ptr<DispatchPlan>>& dispatch_plans() {
    return dispatch_plans_;
  }
  RedistributeCounts& counts() { return counts_; }

  /// Whether an implicit redistribution that communicates is an error.
  bool forbids_implicit() const { return forbids_implicit_; }
  void set_forbids_implicit(bool forbids) { forbids_implicit_ = forbids; }

 private:
  RankContext& context_;
  absl::flat_hash_map<Layout, std::unique_ptr<InternedLayout>> layouts_;
  MapByNumbers<std::unique_ptr<PreparedPlan>> plans_;
  MapByNumbers<std::unique_ptr<DispatchPlan>> dispatch_plans_;
  absl::flat_hash_map<const OpInfo*, OpRuleEntry> rules_;
  RedistributeCounts counts_;
  bool forbids_implicit_ = false;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_RUNTIME_H_
