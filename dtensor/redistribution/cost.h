// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_COST_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_COST_H_

/// \file
/// By what redistributions are compared: their cost as one number, and the
/// memory that they need.

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// How the planner weighs one plan against another: bytes received, plus what
/// starting its collectives costs.
struct RedistributeCostModel {
  /// What starting a collective costs, as the bytes received in that time.
  int64_t bytes_per_launch = 32768;
  /// The same by mesh axis, in place of `bytes_per_launch` where not empty, for
  /// meshes that span hosts. A collective over several axes costs the most of
  /// theirs.
  absl::InlinedVector<int64_t, 4> bytes_per_launch_of_axis = {};
  /// What a byte received over a mesh axis weighs, one where empty: {22, 1} for
  /// a network between hosts with 1/22 of the bandwidth within. A collective
  /// over several axes pays the most of theirs for each byte.
  absl::InlinedVector<int64_t, 4> weight_of_byte_by_axis = {};

  /// What a collective over `axes` weighs, however little it moves.
  int64_t LaunchWeight(absl::Span<const int> axes) const;
  /// What a byte that it receives weighs besides.
  int64_t ByteWeight(absl::Span<const int> axes) const;
  /// Whether a byte weighs the same over every axis.
  bool WeighsBytesAlike() const;
  int64_t Weight(const RedistributeStep& step,
                 const RedistributeCost& cost) const;
  /// Where all axes are equal. \pre nothing is given by axis.
  int64_t Weight(const RedistributeCost& cost) const {
    return cost.bytes + cost.launches * bytes_per_launch;
  }
};

/// The elements that the rank with most holds while steps run one after
/// another: the source, which its owner keeps until the end, the result of the
/// step before and that of the step that runs. A local step gives a view, which
/// keeps alive what it is a part of.
class HeldElements {
 public:
  /// \param source the layout of the tensor to redistribute.
  HeldElements(const Layout& source, ShapeView shape);

  void Run(const RedistributeStep& step, ShapeView shape);

  int64_t peak() const { return peak_; }
  /// How much was allocated for the result so far.
  int64_t result() const { return result_; }

 private:
  int64_t source_;
  int64_t result_ = 0;
  int64_t peak_;
};

/// The elements that some rank receives from others in any algorithm that
/// brings a tensor of `shape` from one layout to another of the same mesh:
///
/// - Nothing to reduce: a rank receives what its destination has beyond its
///   source. Ranks that are to hold summands may share that among them.
/// - A reduction of g summands: a rank receives each element of its destination
///   at least once. And an element that n ranks are to have takes at least
///   g - 1 messages until the first rank has it all, and n - 1 after that; some
///   rank receives the average.
///
/// Summands over axes that are partial in both layouts alike stay apart.
int64_t RedistributeLowerBound(const Layout& from, const Layout& to,
                               ShapeView shape);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_COST_H_
