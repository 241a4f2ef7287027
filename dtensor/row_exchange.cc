// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/row_exchange.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// (x) -> the rows received. For plain tensors, because rows belong to a rank.
class AllToAllRowsOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {kAllToAllRows};
  AllToAllRowsOp(std::shared_ptr<const RowExchange> exchange,
                 const DeviceMesh& mesh)
      : exchange(std::move(exchange)), mesh(mesh) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const std::shared_ptr<const RowExchange> exchange;
  const DeviceMesh mesh;
};

// Checks that the runs, in any order, contain each of `rows` once.
void CheckRuns(const char* what, std::vector<std::vector<RowRun>> lists,
               int64_t rows) {
  std::vector<RowRun> runs;
  for (const std::vector<RowRun>& list : lists) {
    runs.insert(runs.end(), list.begin(), list.end());
  }
  std::erase_if(runs, [](const RowRun& run) { return run.count == 0; });
  std::sort(runs.begin(), runs.end(),
            [](const RowRun& a, const RowRun& b) { return a.first < b.first; });
  int64_t next = 0;
  for (const RowRun& run : runs) {
    CH_CHECK(run.first == next && run.count > 0)
        << AllToAllRowsOp::kInfo.name << ": the rows " << what
        << " are not each of " << rows << " once: " << run.count << " from "
        << run.first << " on follow " << next;
    next += run.count;
  }
  CH_CHECK_EQ(next, rows) << AllToAllRowsOp::kInfo.name << ": rows " << what;
}

std::vector<SegmentList> SegmentsOf(
    const Tensor& rows, const std::vector<std::vector<RowRun>>& lists,
    int64_t row_elems) {
  auto* const data = static_cast<std::byte*>(rows.raw_data());
  const int64_t row_bytes = row_elems * SizeOf(rows.dtype());
  std::vector<SegmentList> segments;
  for (const std::vector<RowRun>& list : lists) {
    SegmentList& of_peer = segments.emplace_back();
    for (const RowRun& run : list) {
      if (run.count * row_elems == 0) continue;
      of_peer.push_back(
          {.data = data == nullptr ? data : data + run.first * row_bytes,
           .run_elems = run.count * row_elems});
    }
  }
  return segments;
}

TensorList AllToAllRowsOp::Forward(TensorSpan inputs) const {
  const Tensor x =
      inputs[0].is_contiguous() ? inputs[0] : CloneOp().Forward({inputs[0]})[0];
  Shape sizes = x.sizes();
  sizes[0] = 1;
  const int64_t row_elems = NumElements(sizes);
  sizes[0] = exchange->rows_taken;
  Tensor out = Empty(sizes, x.dtype());

  Collective collective;
  collective.kind = CollectiveKind::kAllToAll;
  collective.dtype = x.dtype();
  collective.label = kInfo.name;
  collective.send = SegmentsOf(x, exchange->give, row_elems);
  collective.recv = SegmentsOf(out, exchange->take, row_elems);
  RankContext& context = RankContext::Current();
  const absl::StatusOr<Communicator*> communicator = MeshCommunicator(mesh);
  absl::Status status =
      communicator.ok()
          ? (*communicator)
                ->Issue(std::move(collective), context.current_stream())
          : communicator.status();
  if (!status.ok()) context.Poison(std::move(status));
  return {std::move(out)};
}

std::shared_ptr<Node> AllToAllRowsOp::Differentiate(
    TensorSpan /*inputs*/, TensorSpan /*outputs*/) const {
  return MakeNode<0>(
      kInfo,
      [back = std::make_shared<const RowExchange>(exchange->Reversed()),
       mesh = mesh](const auto&, TensorSpan grads, GradientSlots& slots) {
        // Peers participate whether or not this rank needs the gradient.
        Tensor gradient = Apply1(AllToAllRowsOp(back, mesh), {grads[0]});
        if (slots.Needed(0)) slots.Put(0, std::move(gradient));
      });
}

}  // namespace

RowExchange ExchangeOf(absl::Span<const int64_t> give,
                       absl::Span<const int64_t> take) {
  RowExchange exchange;
  for (const int64_t count : give) {
    exchange.give.push_back({{exchange.rows_given, count}});
    exchange.rows_given += count;
  }
  for (const int64_t count : take) {
    exchange.take.push_back({{exchange.rows_taken, count}});
    exchange.rows_taken += count;
  }
  return exchange;
}

Tensor AllToAllRows(const Tensor& x, RowExchange exchange,
                    const DeviceMesh& mesh) {
  const char* const name = AllToAllRowsOp::kInfo.name;
  CH_CHECK(!x.is_distributed() && x.ndim() > 0)
      << name << " of " << x.Describe()
      << ": rows are of plain tensors; ToLocal (dtensor/dtensor.h) gives this "
      << "rank's";
  const auto peers = static_cast<size_t>(mesh.size());
  CH_CHECK(exchange.give.size() == peers && exchange.take.size() == peers)
      << name << " with " << exchange.give.size() << " peers to send to and "
      << exchange.take.size() << " to receive from over " << mesh.ToString();
  CH_CHECK_EQ(exchange.rows_given, x.size(0)) << name << " of " << x.Describe();
  CheckRuns("given", exchange.give, exchange.rows_given);
  CheckRuns("taken", exchange.take, exchange.rows_taken);
  return Apply1(
      AllToAllRowsOp(std::make_shared<RowExchange>(std::move(exchange)), mesh),
      {x});
}

absl::StatusOr<std::vector<int64_t>> GatherNumbers(
    absl::Span<const int64_t> numbers, const DeviceMesh& mesh) {
  RankContext& context = RankContext::Current();
  const auto count = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> all;
  if (context.dry_run()) {
    for (int r = 0; r < mesh.size(); ++r) {
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
  }
  const Tensor own = FromValues<int64_t>({count}, numbers);
  const Tensor gathered = Empty({mesh.size() * count}, kInt64);
  CH_ASSIGN_OR_RETURN(Communicator* const communicator, MeshCommunicator(mesh));
  CH_RETURN_IF_ERROR(AllGather(*communicator, own.raw_data(),
                               gathered.raw_data(), count, kInt64,
                               context.current_stream(), "gather_numbers"));
  if (!context.dry_run()) all = gathered.ToVector<int64_t>();
  CH_RETURN_IF_ERROR(context.status());
  return all;
}

}  // namespace crosshatch
