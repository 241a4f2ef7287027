// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/bound.h"

#include <algorithm>

#include "crosshatch/dtensor/layout/layout_pair.h"

namespace crosshatch {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t RedistributeLowerBound(const Layout& from, const Layout& to,
                               ShapeView shape) {
  const MeshLayout& mesh = from.mesh();
  // Ranks along axes that become partial are one: what passes between them is
  // not counted.
  AxisList pooled;
  int64_t summands = 1;
  // Of those that a message may go between.
  int64_t ranks = 1;
  int64_t replicas = 1;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const AxisState& before = from.state_of_axis(axis);
    const AxisState& after = to.state_of_axis(axis);
    if (before.is_partial() && before == after) continue;
    const int64_t size = mesh.size(axis);
    ranks *= size;
    if (after.is_partial()) {
      pooled.push_back(axis);
      continue;
    }
    if (before.is_partial()) summands *= size;
    if (after.is_replicate()) replicas *= size;
  }
  const int64_t sharers = mesh.GroupSize(pooled);
  if (summands == 1) {
    return CeilDiv(MostMissing(from, to, shape, pooled), sharers);
  }
  const int64_t messages = NumElements(shape) * (summands + replicas - 2);
  return std::max(CeilDiv(LargestShard(to, shape), sharers),
                  CeilDiv(messages, ranks));
}

}  // namespace crosshatch
