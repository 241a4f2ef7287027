// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/gather_parts.h"

#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/redistribution/segments.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

absl::Status Gather(const Tensor& local, int dim,
                    absl::Span<const int64_t> counts,
                    absl::Span<const int> axes, const DeviceMesh& mesh,
                    const char* label, const Tensor& whole) {
  Stream& stream = RankContext::Current().current_stream();
  CH_ASSIGN_OR_RETURN(Communicator * communicator,
                      mesh.communicator(axes, stream.name()));
  Collective collective;
  collective.kind = CollectiveKind::kAllGather;
  collective.dtype = local.dtype();
  collective.label = label;
  collective.send = {SegmentsOf(local, WholeBox(local.sizes()))};
  Box part = WholeBox(whole.sizes());
  for (int64_t count : counts) {
    part.sizes[dim] = count;
    collective.recv.push_back(SegmentsOf(whole, part));
    part.offsets[dim] += count;
  }
  return communicator->Issue(std::move(collective), stream);
}

}  // namespace

Tensor GatherParts(const Tensor& local, int dim,
                   absl::Span<const int64_t> counts, absl::Span<const int> axes,
                   const DeviceMesh& mesh, const char* label) {
  CH_CHECK(local.is_contiguous()) << label << ": " << local.Describe();
  Shape sizes = local.sizes();
  sizes[dim] = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Tensor whole = Empty(sizes, local.dtype());
  if (whole.numel() == 0) return whole;
  absl::Status status = Gather(local, dim, counts, axes, mesh, label, whole);
  if (!status.ok()) RankContext::Current().Poison(std::move(status));
  return whole;
}

}  // namespace crosshatch
