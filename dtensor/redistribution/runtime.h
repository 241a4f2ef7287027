// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_RUNTIME_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_RUNTIME_H_

/// \file
/// A rank's state for its distributed tensors: interned layouts, plans and
/// counts. It belongs to the RankContext.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

class DTensorRuntime;

/// A layout with a unique number: equal layouts of a rank are one object, so
/// that caches compare and hash a number. Lives as long as the rank.
struct InternedLayout {
  DTensorRuntime& runtime;
  int64_t id;
  Layout layout;
  /// This rank's coordinate on the layout's mesh.
  MeshCoordinate here;
};

/// A vector of numbers as a key, which a span can look up without a copy.
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

/// \threadsafety The rank's thread only.
class DTensorRuntime final : public RankContext::Extension {
 public:
  static DTensorRuntime& Current();

  /// Bounds the caches for programs whose shapes never repeat.
  static constexpr size_t kMaxPlans = 1 << 16;

  DTensorRuntime();

  /// Returns the layout's one object. Checks that this rank is on its mesh.
  const InternedLayout& Intern(const Layout& layout);

  /// Returns the plan for a tensor of global shape `shape`, prepared for this
  /// rank. Valid until the next call.
  /// \param model, max_elements those of PlanRedistribute; null: the default.
  /// \error those of PlanRedistribute.
  absl::StatusOr<const PreparedPlan*> Plan(
      const InternedLayout& from, const InternedLayout& to, ShapeView shape,
      int64_t element_size, const RedistributeCostModel* model = nullptr,
      std::optional<int64_t> max_elements = std::nullopt);

  /// Executes a plan, counts it and logs it under its cause. With `done`, a
  /// plan that communicates runs on a side stream (ExecuteAsync).
  Tensor Redistribute(const PreparedPlan& plan, const Tensor& local,
                      const DeviceMesh& mesh, const CommOrigin& cause,
                      Event* done = nullptr);

  const RedistributeCounts& counts() const { return counts_; }
  /// Counts a redistribution and logs it under its cause.
  /// \param subject describes it in the log.
  void Record(const CommOrigin& cause, const RedistributeCost& cost,
              absl::FunctionRef<std::string()> subject);

 private:
  void CheckImplicit(const PreparedPlan& plan, const char* for_op);

  RankContext& context_;
  absl::flat_hash_map<Layout, std::unique_ptr<InternedLayout>> layouts_;
  MapByNumbers<std::unique_ptr<PreparedPlan>> plans_;
  RedistributeCounts counts_;
  absl::flat_hash_set<std::string> warnings_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_RUNTIME_H_
