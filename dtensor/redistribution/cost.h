// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_COST_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_COST_H_

/// \file
/// The cost of redistributions as one number, and the memory that they need.

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// How the planner compares plans: by bytes received, plus the start of
/// collectives.
struct RedistributeCostModel {
  /// The cost of starting a collective, in bytes received in that time.
  int64_t bytes_per_launch = 32768;
  /// The same by mesh axis; replaces `bytes_per_launch` if not empty, for
  /// meshes that span hosts. A collective over several axes costs the maximum
  /// of theirs.
  absl::InlinedVector<int64_t, 4> bytes_per_launch_of_axis = {};
  /// The weight of a byte received over each mesh axis; one if empty. {22, 1}
  /// describes a network between hosts with 1/22 of the bandwidth within. A
  /// collective over several axes has the maximum weight of theirs.
  absl::InlinedVector<int64_t, 4> weight_of_byte_by_axis = {};

  /// Returns the weight of starting a collective over `axes`.
  int64_t LaunchWeight(absl::Span<const int> axes) const;
  /// Returns the weight of each byte that it receives.
  int64_t ByteWeight(absl::Span<const int> axes) const;
  /// Returns whether a byte weighs the same over every axis.
  bool WeighsBytesAlike() const;
  int64_t Weight(const RedistributeStep& step,
                 const RedistributeCost& cost) const;
  /// The weight if all axes are equal.
  /// \pre no weights by axis
  int64_t Weight(const RedistributeCost& cost) const {
    return cost.bytes + cost.launches * bytes_per_launch;
  }
};

/// Tracks the elements on the rank that holds the most while steps run one
/// after another: the source, which its owner keeps until the end, the result
/// of the previous step and that of the current one. A local step gives a view,
/// which keeps its base alive.
class HeldElements {
 public:
  /// \param source the layout of the tensor to redistribute.
  HeldElements(const Layout& source, ShapeView shape);

  void Run(const RedistributeStep& step, ShapeView shape);

  int64_t peak() const { return peak_; }
  /// Returns the elements allocated for the result so far.
  int64_t result() const { return result_; }

 private:
  int64_t source_;
  int64_t result_ = 0;
  int64_t peak_;
};

/// Returns a lower bound on the elements that some rank receives from others,
/// for any algorithm that brings a tensor of `shape` from one layout to another
/// of the same mesh:
///
/// - Without reductions: a rank receives what its destination has beyond its
///   source. Ranks whose destination is partial may share that among them.
/// - A reduction of g summands: a rank receives each element of its destination
///   at least once. An element that n ranks need takes at least g - 1 messages
///   until the first rank has its sum, and n - 1 after that; some rank receives
///   the average.
///
/// Axes that are partial in both layouts with the same op are not reduced.
int64_t RedistributeLowerBound(const Layout& from, const Layout& to,
                               ShapeView shape);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_COST_H_
