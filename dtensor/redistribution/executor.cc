// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/executor.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

struct Level {
  int64_t size;
  int64_t stride;
};

// Returns the dims of the box, innermost first, without those of size 1, and
// with adjacent dims joined if they are contiguous.
absl::InlinedVector<Level, 5> Coalesce(ShapeView sizes, ShapeView strides) {
  absl::InlinedVector<Level, 5> levels;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (!levels.empty() &&
        strides[i] == levels.back().stride * levels.back().size) {
      levels.back().size *= sizes[i];
    } else {
      levels.push_back({sizes[i], strides[i]});
    }
  }
  return levels;
}

using Kind = RedistributeStepKind;

Tensor ViewOf(const Tensor& t, const Box& box) {
  int64_t offset = t.storage_offset();
  for (int d = 0; d < box.ndim(); ++d) {
    offset += box.offsets[d] * t.strides()[d];
  }
  return MakeView(t.storage(), offset, box.sizes, t.strides(), t.dtype());
}

bool IsWhole(const Box& box, ShapeView sizes) {
  return std::all_of(box.offsets.begin(), box.offsets.end(),
                     [](int64_t offset) { return offset == 0; }) &&
         std::equal(box.sizes.begin(), box.sizes.end(), sizes.begin(),
                    sizes.end());
}

// Memory that a run allocates belongs to the stream `home` and is used on the
// current one; null if they are the same.
Tensor EmptyOf(ShapeView sizes, DType dtype, Stream* home) {
  if (home == nullptr) return Empty(sizes, dtype);
  Stream& current = RankContext::Current().current_stream();
  StreamScope scope(*home);
  Tensor made = Empty(sizes, dtype);
  // The memory may be in use until then.
  current.Wait(home->Record());
  return made;
}

// Keeps the memory from being leased again before the current stream has used
// it.
void UsedHere(const Tensor& t, const Stream* home) {
  if (home == nullptr) return;
  t.storage()->block().UsedOn(RankContext::Current().current_stream());
}

// Executes a step without communication.
Tensor RunLocal(const RedistributeStep& step, const PreparedPlan::Step& part,
                const Tensor& source, Stream* home) {
  const bool copies = !part.boxes.sends.empty();
  if (copies && IsWhole(part.boxes.receives[0], part.sizes)) {
    return ViewOf(source, part.boxes.sends[0]);
  }
  Tensor destination = EmptyOf(part.sizes, source.dtype(), home);
  if (NumElements(part.sizes) == 0) return destination;
  FillInPlaceOp(step.FillValue()).Forward({destination});
  if (copies) {
    CopyInPlaceOp().Forward({ViewOf(destination, part.boxes.receives[0]),
                             ViewOf(source, part.boxes.sends[0])});
  }
  return destination;
}

Collective CollectiveOf(const RedistributeStep& step,
                        const PreparedPlan::Step& part, const Tensor& source,
                        const Tensor& destination) {
  Collective collective;
  collective.dtype = source.dtype();
  collective.reduce_op = step.op;
  collective.scale = 1.0 / static_cast<double>(step.divisor);
  collective.label = part.label;
  if (const char* const about = CurrentCommOrigin().about) {
    collective.about = std::make_shared<const std::string>(about);
  }
  const auto send = [&](size_t i) {
    collective.send.push_back(SegmentsOf(source, part.boxes.sends[i]));
  };
  const auto receive = [&](size_t i) {
    collective.recv.push_back(SegmentsOf(destination, part.boxes.receives[i]));
  };
  const size_t peers = part.boxes.sends.size();
  switch (step.kind) {
    case Kind::kAllGather:
      collective.kind = CollectiveKind::kAllGather;
      send(0);
      for (size_t i = 0; i < peers; ++i) receive(i);
      break;
    case Kind::kAllToAll:
      collective.kind = CollectiveKind::kAllToAll;
      for (size_t i = 0; i < peers; ++i) send(i);
      for (size_t i = 0; i < peers; ++i) receive(i);
      break;
    case Kind::kReduceScatter:
      collective.kind = CollectiveKind::kReduceScatter;
      for (size_t i = 0; i < peers; ++i) send(i);
      receive(part.boxes.self);
      break;
    case Kind::kAllReduce:
      collective.kind = CollectiveKind::kAllReduce;
      send(0);
      receive(0);
      break;
    case Kind::kLocal:
    case Kind::kToPartial:
      break;
  }
  return collective;
}

}  // namespace

void IssueAlong(absl::Span<const int> axes, const DeviceMesh& mesh,
                Collective collective) {
  RankContext& context = RankContext::Current();
  Stream& stream = context.current_stream();
  const absl::StatusOr<Communicator*> communicator =
      mesh.communicator(axes, stream.name());
  absl::Status status =
      communicator.ok() ? (*communicator)->Issue(std::move(collective), stream)
                        : communicator.status();
  if (!status.ok()) context.Poison(std::move(status));
}

void AppendSegments(const Tensor& t, const Box& box, SegmentList& segments) {
  CH_CHECK_EQ(box.ndim(), t.ndim());
  if (box.empty()) return;
  const ShapeView strides = t.strides();
  int64_t offset = 0;
  for (int d = 0; d < box.ndim(); ++d) offset += box.offsets[d] * strides[d];

  const auto levels = Coalesce(box.sizes, strides);
  Segment segment;
  segment.run_elems = 1;
  size_t next = 0;
  if (next < levels.size() && levels[next].stride == 1) {
    segment.run_elems = levels[next++].size;
  }
  if (next < levels.size()) {
    segment.runs = levels[next].size;
    segment.stride_elems = levels[next++].stride;
  }

  auto* const data = static_cast<std::byte*>(t.raw_data());
  const int64_t element = SizeOf(t.dtype());
  absl::InlinedVector<int64_t, 5> index(levels.size() - next, 0);
  while (true) {
    segment.data = data == nullptr ? nullptr : data + offset * element;
    segments.push_back(segment);
    size_t i = 0;
    for (; i < index.size(); ++i) {
      offset += levels[next + i].stride;
      if (++index[i] < levels[next + i].size) break;
      offset -= levels[next + i].stride * levels[next + i].size;
      index[i] = 0;
    }
    if (i == index.size()) return;
  }
}

SegmentList SegmentsOf(const Tensor& t, const Box& box) {
  SegmentList segments;
  AppendSegments(t, box, segments);
  return segments;
}

PreparedPlan Prepare(RedistributePlan plan, ShapeView global_shape,
                     absl::Span<const int> coordinate) {
  PreparedPlan prepared = {.plan = std::move(plan)};
  prepared.stays = true;
  for (const RedistributeStep& step : prepared.plan.steps) {
    PreparedPlan::Step part = {
        .boxes = StepTransfers(step, global_shape, coordinate),
        .sizes = step.to.LocalShape(global_shape, coordinate),
        .label = absl::StrCat("redistribute ", step.from.ToString(), " -> ",
                              step.to.ToString()),
    };
    prepared.stays = prepared.stays && step.kind == Kind::kLocal &&
                     step.from.LocalBox(global_shape, coordinate) ==
                         step.to.LocalBox(global_shape, coordinate);
    prepared.steps.push_back(std::move(part));
  }
  prepared.shares_memory =
      prepared.plan.cost.launches == 0 && !prepared.plan.steps.empty() &&
      !SameShards(prepared.plan.from, prepared.plan.to, global_shape);
  return prepared;
}

PreparedPlan Prepare(const Layout& from, const Layout& to,
                     ShapeView global_shape, DType dtype,
                     absl::Span<const int> coordinate) {
  absl::StatusOr<RedistributePlan> plan =
      PlanRedistribute(from, to, global_shape, SizeOf(dtype));
  CH_CHECK_OK(plan.status());
  return Prepare(*std::move(plan), global_shape, coordinate);
}

namespace {

Tensor Run(const PreparedPlan& plan, const Tensor& local,
           const DeviceMesh& mesh, Stream* home) {
  if (plan.stays) return local;
  Tensor current = local;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const RedistributeStep& step = plan.plan.steps[i];
    const PreparedPlan::Step& part = plan.steps[i];
    Tensor destination;
    if (step.communicates()) {
      // A collective reads each element of memory once.
      if (Repeats(current.sizes(), current.strides())) {
        Tensor copy = CloneOp().Forward({current})[0];
        UsedHere(current, home);
        current = std::move(copy);
      }
      destination = EmptyOf(part.sizes, current.dtype(), home);
      // Empty lists: no member of the group has elements to reduce.
      if (!part.boxes.sends.empty()) {
        IssueAlong(step.axes, mesh,
                   CollectiveOf(step, part, current, destination));
      }
    } else {
      destination = RunLocal(step, part, current, home);
    }
    UsedHere(current, home);
    UsedHere(destination, home);
    current = std::move(destination);
  }
  return current;
}

}  // namespace

Tensor Execute(const PreparedPlan& plan, const Tensor& local,
               const DeviceMesh& mesh) {
  return Run(plan, local, mesh, /*home=*/nullptr);
}

Tensor ExecuteAsync(const PreparedPlan& plan, const Tensor& local,
                    const DeviceMesh& mesh, Event& done) {
  RankContext& context = RankContext::Current();
  // The last use of borrowed memory is unknown.
  const bool borrowed = local.numel() > 0 && local.storage()->block().empty();
  if (plan.plan.cost.launches == 0 || borrowed) {
    return Execute(plan, local, mesh);
  }
  Stream& home = context.current_stream();
  Stream& side = context.SideStream("redistribute");
  side.Wait(home.Record());
  StreamScope scope(side);
  Tensor result = Run(plan, local, mesh, &home);
  done = side.Record();
  return result;
}

PreparedCrossMeshPlan PrepareCrossMesh(CrossMeshPlan plan,
                                       ShapeView global_shape, int world_rank) {
  PreparedCrossMeshPlan prepared = {.plan = std::move(plan)};
  const CrossMeshPlan& of = prepared.plan;
  prepared.transfers = CrossMeshTransfersOf(of, global_shape, world_rank);
  const MeshLayout& from = of.from().mesh();
  const MeshLayout& to = of.to().mesh();
  if (const auto here = from.CoordinateOf(world_rank); here.has_value()) {
    prepared.reduce = Prepare(of.reduce, global_shape, *here);
  }
  if (const auto here = to.CoordinateOf(world_rank); here.has_value()) {
    prepared.sizes = of.destination().LocalShape(global_shape, *here);
    prepared.finish = Prepare(of.finish, global_shape, *here);
  }
  prepared.shares_memory = of.cost.launches == 0;
  prepared.group = absl::StrCat(from.ToString(), " and ", to.ToString());
  prepared.label = absl::StrCat("redistribute ", of.from().ToString(), " on ",
                                from.ToString(), " -> ", of.to().ToString(),
                                " on ", to.ToString());
  return prepared;
}

namespace {

absl::Status Exchange(const PreparedCrossMeshPlan& plan, const Tensor& source,
                      const Tensor& destination, DType dtype, World& world) {
  Collective collective;
  collective.kind = CollectiveKind::kAllToAll;
  collective.dtype = dtype;
  collective.label = plan.label;
  const auto segments = [](const Tensor& t, const std::optional<Box>& box) {
    return box.has_value() ? SegmentsOf(t, *box) : SegmentList();
  };
  for (const auto& box : plan.transfers.sends) {
    collective.send.push_back(segments(source, box));
  }
  for (const auto& box : plan.transfers.receives) {
    collective.recv.push_back(segments(destination, box));
  }
  Stream& stream = RankContext::Current().current_stream();
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> communicator,
                      world.Group(plan.group, plan.plan.ranks, stream.name()));
  return communicator->Issue(std::move(collective), stream);
}

}  // namespace

Tensor ExecuteCrossMesh(const PreparedCrossMeshPlan& plan, const Tensor& local,
                        DType dtype, const DeviceMesh& from,
                        const DeviceMesh& to) {
  Tensor source;
  if (plan.reduce.has_value()) source = Execute(*plan.reduce, local, from);
  const bool receives = plan.finish.has_value();
  if (!plan.plan.exchanges) {
    if (!receives) return Tensor();
    const auto& box = plan.transfers.sends[plan.transfers.self];
    // The destination, if any, is a part of the source.
    return Execute(
        *plan.finish,
        box.has_value() ? ViewOf(source, *box) : Empty(plan.sizes, dtype), to);
  }
  if (source.defined() && Repeats(source.sizes(), source.strides())) {
    source = CloneOp().Forward({source})[0];
  }
  Tensor destination;
  if (receives) destination = Empty(plan.sizes, dtype);
  absl::Status status =
      Exchange(plan, source, destination, dtype, from.world());
  if (!status.ok()) RankContext::Current().Poison(std::move(status));
  return receives ? Execute(*plan.finish, destination, to) : Tensor();
}

}  // namespace crosshatch
