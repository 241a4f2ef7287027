// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/split_dim.h"

#include <numeric>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

// Returns the position in `t` of `common`, a part of the interval `of` that `t`
// has along the dim.
Box BoxOf(const Tensor& t, int dim, const Interval& of,
          const Interval& common) {
  Box box = WholeBox(t.sizes());
  const auto d = static_cast<size_t>(dim);
  box.offsets[d] = common.size() == 0 ? 0 : common.begin - of.begin;
  box.sizes[d] = common.size();
  return box;
}

// Returns whether some rank needs what another one has.
bool MovesApart(const PartsMove& move) {
  for (size_t r = 0; r < move.has.size(); ++r) {
    for (size_t other = 0; other < move.has.size(); ++other) {
      if (r == other) continue;
      if (Intersect(move.wants[r], move.has[other]).size() > 0) return true;
    }
  }
  return false;
}

}  // namespace

Tensor MoveParts(const Tensor& local, const PartsMove& move,
                 const DeviceMesh& mesh, const char* label) {
  const auto d = static_cast<size_t>(move.dim);
  const Interval& has = move.has[move.here];
  const Interval& wants = move.wants[move.here];
  CH_CHECK_EQ(local.sizes()[d], has.size())
      << label << ": " << local.Describe();
  Shape sizes = local.sizes();
  sizes[d] = wants.size();
  int64_t wanted_and_there = 0;
  for (const Interval& part : move.has) {
    wanted_and_there += Intersect(wants, part).size();
  }
  Tensor out = wanted_and_there == wants.size() ? Empty(sizes, local.dtype())
                                                : Zeros(sizes, local.dtype());
  if (MovesApart(move)) {
    // All ranks agree on whether there are elements, because the other dims are
    // equal.
    Shape others = sizes;
    others[d] = 1;
    if (NumElements(others) == 0) return out;
    // An expanded tensor has several elements in one place, which no collective
    // sends.
    const Tensor sent = Repeats(local.sizes(), local.strides())
                            ? CloneOp().Forward({local})[0]
                            : local;
    Collective collective;
    collective.kind = CollectiveKind::kAllToAll;
    collective.dtype = sent.dtype();
    collective.label = label;
    for (size_t r = 0; r < move.has.size(); ++r) {
      collective.send.push_back(SegmentsOf(
          sent, BoxOf(sent, move.dim, has, Intersect(has, move.wants[r]))));
      collective.recv.push_back(SegmentsOf(
          out, BoxOf(out, move.dim, wants, Intersect(wants, move.has[r]))));
    }
    IssueAlong(move.axes, mesh, std::move(collective));
    return out;
  }
  const Interval common = Intersect(wants, has);
  if (common.size() == 0) return out;
  const auto part = [&](const Tensor& t, const Interval& of) {
    return SliceOp(move.dim, common.begin - of.begin, common.end - of.begin)
        .Forward({t})[0];
  };
  CopyInPlaceOp().Forward({part(out, wants), part(local, has)});
  return out;
}

Tensor GatherParts(const Tensor& local, int dim,
                   absl::Span<const int64_t> counts, absl::Span<const int> axes,
                   const DeviceMesh& mesh, const char* label) {
  CH_CHECK(local.is_contiguous()) << label << ": " << local.Describe();
  Shape sizes = local.sizes();
  sizes[dim] = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Tensor whole = Empty(sizes, local.dtype());
  if (whole.numel() == 0) return whole;
  Collective collective;
  collective.kind = CollectiveKind::kAllGather;
  collective.dtype = local.dtype();
  collective.label = label;
  collective.send = {SegmentsOf(local, WholeBox(local.sizes()))};
  Box part = WholeBox(sizes);
  for (int64_t count : counts) {
    part.sizes[dim] = count;
    collective.recv.push_back(SegmentsOf(whole, part));
    part.offsets[dim] += count;
  }
  IssueAlong(axes, mesh, std::move(collective));
  return whole;
}

}  // namespace crosshatch
