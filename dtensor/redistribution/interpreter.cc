// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

namespace {

using Kind = RedistributeStepKind;

constexpr double kUnwritten = std::numeric_limits<double>::infinity();

std::vector<int64_t> PositionsIn(ShapeView shape, const Box& box) {
  CH_CHECK(Contains(WholeBox(shape), box))
      << ToString(box) << " of " << ToString(shape);
  std::vector<int64_t> positions = {0};
  for (int d = 0; d < box.ndim(); ++d) {
    std::vector<int64_t> next;
    next.reserve(positions.size() * box.sizes[d]);
    for (int64_t position : positions) {
      for (int64_t i = 0; i < box.sizes[d]; ++i) {
        next.push_back(position * shape[d] + box.offsets[d] + i);
      }
    }
    positions = std::move(next);
  }
  return positions;
}

/// Writes `values` to `box` of a tensor of shape `shape`, whose elements there
/// must be unwritten.
void Paste(const Values& values, ShapeView shape, const Box& box,
           Values& tensor) {
  const std::vector<int64_t> positions = PositionsIn(shape, box);
  CH_CHECK_EQ(positions.size(), values.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    CH_CHECK(tensor[positions[i]] == kUnwritten) << "written twice";
    tensor[positions[i]] = values[i];
  }
}

std::vector<Values> RunStep(const RedistributeStep& step, ShapeView shape,
                            int64_t element_size,
                            const std::vector<Values>& shards,
                            RedistributeCost& cost,
                            std::vector<int64_t>& allocated) {
  const MeshLayout& mesh = step.from.mesh();
  std::vector<TransferBoxes> transfers;
  std::vector<Values> results;
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    transfers.push_back(StepTransfers(step, shape, at));
    results.emplace_back(step.to.LocalBox(shape, at).numel(), kUnwritten);
  }
  int64_t most = 0;
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    const Shape local = step.to.LocalShape(shape, at);
    const TransferBoxes& mine = transfers[i];
    Values& result = results[i];
    int64_t received = 0;
    const int64_t numel = static_cast<int64_t>(result.size());
    if (step.communicates()) allocated[i] = numel;
    if (!step.communicates()) {
      CH_CHECK_EQ(mine.sends.size(), mine.receives.size());
      for (size_t c = 0; c < mine.sends.size(); ++c) {
        Paste(Cut(shards[i], step.from.LocalShape(shape, at), mine.sends[c]),
              local, mine.receives[c], result);
      }
      if (step.kind == Kind::kToPartial) {
        // A step that keeps all values is a view.
        if (std::count(result.begin(), result.end(), kUnwritten) > 0) {
          allocated[i] = numel;
        }
        std::replace(result.begin(), result.end(), kUnwritten,
                     static_cast<double>(step.FillValue()));
      }
    } else {
      CH_CHECK(std::is_sorted(step.axes.begin(), step.axes.end()));
      const std::vector<int> group = mesh.GroupRanks(step.axes, at);
      std::vector<Values> arrived;
      for (size_t peer = 0; peer < group.size(); ++peer) {
        const MeshCoordinate place = *mesh.CoordinateOf(group[peer]);
        const int p = static_cast<int>(
            std::find(mesh.ranks().begin(), mesh.ranks().end(), group[peer]) -
            mesh.ranks().begin());
        const Shape source = step.from.LocalShape(shape, place);
        if (step.kind == Kind::kAllReduce) {
          CH_CHECK(local == source);
          arrived.push_back(shards[p]);
          continue;
        }
        CH_CHECK_EQ(mine.sends.size(), group.size());
        CH_CHECK_EQ(group[mine.self], mesh.ranks()[i]);
        const Box& sent = transfers[p].sends[mine.self];
        CH_CHECK_EQ(sent.numel(), mine.receives[peer].numel());
        if (step.kind == Kind::kAllGather) {
          CH_CHECK(sent == transfers[p].sends[0]);
        }
        const Values values = Cut(shards[p], source, sent);
        if (static_cast<int>(peer) != mine.self) received += values.size();
        if (step.kind == Kind::kReduceScatter) {
          CH_CHECK(mine.receives[peer] == WholeBox(local));
          arrived.push_back(values);
        } else {
          CH_CHECK(sent.empty() || sent.sizes == mine.receives[peer].sizes);
          Paste(values, local, mine.receives[peer], result);
        }
      }
      for (size_t e = 0; !arrived.empty() && e < result.size(); ++e) {
        std::vector<double> summands;
        for (const Values& values : arrived) summands.push_back(values.at(e));
        result[e] = ReduceValues(step.op, summands) / step.divisor;
      }
      if (step.kind == Kind::kAllReduce) {
        const int64_t n = static_cast<int64_t>(result.size());
        const int64_t ranks = static_cast<int64_t>(group.size());
        received = n + (ranks - 2) * ((n + ranks - 1) / ranks);
      }
    }
    CH_CHECK(std::find(result.begin(), result.end(), kUnwritten) ==
             result.end())
        << "not all written by " << step.ToString() << " from "
        << step.from.ToString();
    most = std::max(most, received);
  }
  cost.bytes += most * element_size;
  cost.launches += step.communicates() ? 1 : 0;
  return results;
}

}  // namespace

Values Cut(const Values& tensor, ShapeView shape, const Box& box) {
  if (box.empty()) return {};
  Values values;
  for (int64_t position : PositionsIn(shape, box)) {
    values.push_back(tensor.at(position));
  }
  return values;
}

std::vector<Values> CutAll(const Layout& layout, ShapeView shape,
                           const DenseAt& dense) {
  std::vector<Values> shards;
  for (int i = 0; i < layout.mesh().size(); ++i) {
    const MeshCoordinate at = layout.mesh().CoordinateAt(i);
    shards.push_back(Cut(dense(at), shape, layout.LocalBox(shape, at)));
  }
  return shards;
}

double ReduceValues(ReduceOp op, const std::vector<double>& values) {
  double result = values.at(0);
  for (size_t i = 1; i < values.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result += values[i];
        break;
      case ReduceOp::kProduct:
        result *= values[i];
        break;
      case ReduceOp::kMin:
        result = std::min(result, values[i]);
        break;
      case ReduceOp::kMax:
        result = std::max(result, values[i]);
        break;
    }
  }
  return op == ReduceOp::kAvg ? result / static_cast<double>(values.size())
                              : result;
}

std::vector<Values> RunPlan(const RedistributePlan& plan, ShapeView shape,
                            int64_t element_size, std::vector<Values> shards) {
  RedistributeCost cost;
  const Layout* layout = &plan.from;
  // By rank: the source, which stays allocated, and the backing of the result
  // so far.
  std::vector<int64_t> source;
  for (const Values& shard : shards) {
    source.push_back(static_cast<int64_t>(shard.size()));
  }
  std::vector<int64_t> backing(shards.size(), 0);
  int64_t peak = *std::max_element(source.begin(), source.end());
  for (const RedistributeStep& step : plan.steps) {
    CH_CHECK(step.from == *layout) << "steps do not join up:\n"
                                   << plan.ToString();
    std::vector<int64_t> allocated(shards.size(), -1);
    shards = RunStep(step, shape, element_size, shards, cost, allocated);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (allocated[i] < 0) continue;
      peak = std::max(peak, source[i] + backing[i] + allocated[i]);
      backing[i] = allocated[i];
    }
    layout = &step.to;
  }
  CH_CHECK(*layout == plan.to) << plan.ToString();
  CH_CHECK(cost == plan.cost) << cost.bytes << " bytes in " << cost.launches
                              << " collectives instead of\n"
                              << plan.ToString();
  CH_CHECK(peak <= plan.peak_elements)
      << peak << " elements held instead of " << plan.peak_elements << " by\n"
      << plan.ToString();
  return shards;
}

std::vector<Values> RunCrossMeshPlan(const CrossMeshPlan& plan, ShapeView shape,
                                     int64_t element_size,
                                     std::vector<Values> shards) {
  shards = RunPlan(plan.reduce, shape, element_size, std::move(shards));
  const MeshLayout& before = plan.source().mesh();
  const MeshLayout& after = plan.destination().mesh();
  std::vector<CrossMeshTransfers> transfers;
  for (int rank : plan.ranks) {
    transfers.push_back(CrossMeshTransfersOf(plan, shape, rank));
  }
  std::vector<Values> results(after.size());
  int64_t most = 0;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto at = after.CoordinateOf(plan.ranks[r]);
    Shape local;
    Values result;
    if (at.has_value()) {
      local = plan.destination().LocalShape(shape, *at);
      result.assign(NumElements(local), kUnwritten);
    }
    const CrossMeshTransfers& mine = transfers[r];
    CH_CHECK_EQ(mine.self, static_cast<int>(r));
    int64_t received = 0;
    for (size_t s = 0; s < plan.ranks.size(); ++s) {
      const std::optional<Box>& sent = transfers[s].sends[r];
      const std::optional<Box>& wanted = mine.receives[s];
      CH_CHECK(sent.has_value() == wanted.has_value());
      if (!sent.has_value()) continue;
      CH_CHECK(at.has_value() && sent->sizes == wanted->sizes);
      const auto place = before.CoordinateOf(plan.ranks[s]);
      CH_CHECK(place.has_value());
      const int64_t index = std::find(before.ranks().begin(),
                                      before.ranks().end(), plan.ranks[s]) -
                            before.ranks().begin();
      Paste(Cut(shards[index], plan.source().LocalShape(shape, *place), *sent),
            local, *wanted, result);
      if (s != r) received += sent->numel();
    }
    if (!at.has_value()) continue;
    CH_CHECK(std::find(result.begin(), result.end(), kUnwritten) ==
             result.end())
        << "not all written by\n"
        << plan.ToString();
    int64_t missing = static_cast<int64_t>(result.size());
    if (const auto held = before.CoordinateOf(plan.ranks[r]);
        held.has_value()) {
      missing -= Intersect(plan.destination().LocalBox(shape, *at),
                           plan.source().LocalBox(shape, *held))
                     .numel();
    }
    CH_CHECK_EQ(received, missing);
    most = std::max(most, received);
    results[std::find(after.ranks().begin(), after.ranks().end(),
                      plan.ranks[r]) -
            after.ranks().begin()] = std::move(result);
  }
  CH_CHECK_EQ(plan.exchanges, most > 0);
  RedistributeCost cost = plan.reduce.cost;
  cost += {most * element_size, plan.exchanges ? 1 : 0};
  CH_CHECK(cost == plan.cost) << cost.bytes << " bytes instead of\n"
                              << plan.ToString();
  CH_CHECK_EQ(plan.finish.cost.launches, 0);
  return RunPlan(plan.finish, shape, element_size, std::move(results));
}

namespace {

std::vector<int> PartialAxes(const Layout& layout) {
  std::vector<int> axes;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_partial()) axes.push_back(axis);
  }
  return axes;
}

/// Returns the reduction of one value for each index along the partial axes,
/// given in row-major order. The ops commute, so sums and averages may be
/// combined.
double ReducePartial(const Layout& layout, const std::vector<double>& values) {
  const std::vector<int> axes = PartialAxes(layout);
  if (axes.empty()) return values.at(0);
  int64_t averaged = 1;
  ReduceOp op = ReduceOp::kSum;
  for (int axis : axes) {
    const ReduceOp of_axis = layout.state_of_axis(axis).op;
    if (of_axis == ReduceOp::kAvg) {
      averaged *= layout.mesh().size(axis);
    } else {
      op = of_axis;
    }
  }
  return ReduceValues(op, values) / static_cast<double>(averaged);
}

}  // namespace

DenseTensor::DenseTensor(const Layout& layout, ShapeView shape,
                         std::mt19937& random)
    : layout_(layout),
      shape_(shape.begin(), shape.end()),
      summands_(layout.mesh().GroupSize(PartialAxes(layout)),
                Values(NumElements(shape))),
      values_(NumElements(shape)) {
  std::uniform_int_distribution<int> small(1, 3);
  for (Values& summand : summands_) {
    for (double& x : summand) x = small(random);
  }
  std::vector<double> values(summands_.size());
  for (size_t e = 0; e < values_.size(); ++e) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = summands_[i][e];
    values_[e] = ReducePartial(layout, values);
  }
}

std::vector<Values> DenseTensor::Shards() const {
  const std::vector<int> axes = PartialAxes(layout_);
  return CutAll(layout_, shape_,
                [&](const MeshCoordinate& at) -> const Values& {
                  return summands_[layout_.mesh().GroupIndex(axes, at)];
                });
}

std::string DenseTensor::Mismatch(const Layout& to,
                                  const std::vector<Values>& shards) const {
  const MeshLayout& mesh = to.mesh();
  const std::vector<int> axes = PartialAxes(to);
  std::vector<int> position(
      1 + *std::max_element(mesh.ranks().begin(), mesh.ranks().end()));
  for (int i = 0; i < mesh.size(); ++i) position[mesh.ranks()[i]] = i;
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    const Values expected = Cut(values_, shape_, to.LocalBox(shape_, at));
    if (shards[i].size() != expected.size()) {
      return absl::StrCat("position ", i, " has ", shards[i].size(),
                          " elements instead of ", expected.size());
    }
    const std::vector<int> group = mesh.GroupRanks(axes, at);
    std::vector<double> values(group.size());
    for (size_t e = 0; e < expected.size(); ++e) {
      for (size_t r = 0; r < group.size(); ++r) {
        values[r] = shards[position[group[r]]].at(e);
      }
      const double actual = ReducePartial(to, values);
      // Only averages over 3 ranks and their sums are rounded.
      if (std::abs(actual - expected[e]) > 1e-12 * std::abs(expected[e])) {
        return absl::StrCat("position ", i, " element ", e, ": ", actual,
                            " instead of ", expected[e]);
      }
    }
  }
  return "";
}

}  // namespace crosshatch
