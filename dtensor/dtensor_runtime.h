// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_RUNTIME_H_
#define CROSSHATCH_DTENSOR_DTENSOR_RUNTIME_H_

/// \file
/// What a rank keeps for its distributed tensors: layouts by number, plans,
/// rules of the user's ops, and counts. It hangs on the RankContext.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/comm_origin.h"
#include "crosshatch/dtensor/implicit_redistribution.h"
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

  /// As above by a cost model and a bound of the caller's, as PlanRedistribute
  /// takes them.
  /// \error those of PlanRedistribute.
  absl::StatusOr<const PreparedPlan*> Plan(const InternedLayout& from,
                                           const InternedLayout& to,
                                           ShapeView shape,
                                           int64_t element_size,
                                           const RedistributeCostModel& model,
                                           std::optional<int64_t> max_elements);

  /// Executes a plan, counts it and logs it, by what it is done for. With
  /// `done` what communicates runs on a side stream (ExecuteAsync).
  Tensor Redistribute(const PreparedPlan& plan, const Tensor& local,
                      const DeviceMesh& mesh, const CommOrigin& cause,
                      Event* done = nullptr);

  /// The rule that the user registered for an op; null if none.
  const OpRuleEntry* UserRule(const OpInfo& info) const;
  void AddUserRule(const OpInfo& info, OpRuleEntry entry);

  /// Shared with the calls whose programs run.
  MapByNumbers<std::shared_ptr<DispatchPlan>>& dispatch_plans() {
    return dispatch_plans_;
  }
  const RedistributeCounts& counts() const { return counts_; }
  void Count(CommOrigin::Kind cause, const RedistributeCost& cost);

  /// What becomes of an implicit redistribution that communicates.
  ImplicitRedistribution implicit_redistribution() const {
    return implicit_redistribution_;
  }
  void set_implicit_redistribution(ImplicitRedistribution mode) {
    implicit_redistribution_ = mode;
  }

  /// Says where collectives come from while it lives.
  class OriginScope {
   public:
    OriginScope(DTensorRuntime& runtime, CommOrigin origin)
        : runtime_(runtime), previous_(runtime.comm_origin_) {
      runtime_.comm_origin_ = origin;
    }
    ~OriginScope() { runtime_.comm_origin_ = previous_; }
    OriginScope(const OriginScope&) = delete;
    OriginScope& operator=(const OriginScope&) = delete;

   private:
    DTensorRuntime& runtime_;
    const CommOrigin previous_;
  };
  const CommOrigin& comm_origin() const { return comm_origin_; }

 private:
  void CheckImplicit(const PreparedPlan& plan, const char* for_op);

  RankContext& context_;
  absl::flat_hash_map<Layout, std::unique_ptr<InternedLayout>> layouts_;
  MapByNumbers<std::unique_ptr<PreparedPlan>> plans_;
  MapByNumbers<std::shared_ptr<DispatchPlan>> dispatch_plans_;
  absl::flat_hash_map<const OpInfo*, OpRuleEntry> rules_;
  RedistributeCounts counts_;
  ImplicitRedistribution implicit_redistribution_ =
      ImplicitRedistribution::kAllow;
  absl::flat_hash_set<std::string> warnings_;
  CommOrigin comm_origin_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_RUNTIME_H_
