// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_suite_testutil.h"

namespace crosshatch {
namespace internal {
namespace {

constexpr DType kAllDTypes[] = {
    DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16,
    DType::kInt32,   DType::kInt64,   DType::kUInt16,   DType::kBool};
constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAvg,
                                ReduceOp::kProduct, ReduceOp::kMin,
                                ReduceOp::kMax};
constexpr ListLayout kAllLayouts[] = {ListLayout::kContiguous,
                                      ListLayout::kSplit, ListLayout::kStrided,
                                      ListLayout::kInPlace};
constexpr int64_t kCounts[] = {0, 1, 3, 5, 7, 13, 31, 64, 127, 1000};

/// Runs every count with every dtype and, for reductions, every op.
absl::Status SweepKind(CollectiveKind kind, ConformanceRank& rank) {
  uint64_t seed = 0;
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllOps) {
      if (!IsReduction(kind) && op != ReduceOp::kSum) continue;
      if (IsReduction(kind) && dtype == DType::kBool) continue;
      if (op == ReduceOp::kAvg && !IsFloatingPoint(dtype)) continue;
      for (int64_t count : kCounts) {
        CollectiveCase c{
            .kind = kind, .dtype = dtype, .op = op, .seed = ++seed};
        c.counts.assign(NumCounts(kind, rank.size()), count);
        c.root = static_cast<int>(seed % rank.size());
        if (IsFloatingPoint(dtype) && seed % 3 == 0) c.scale = 0.625;
        CH_RETURN_IF_ERROR(rank.Run(c));
      }
    }
  }
  return absl::OkStatus();
}

/// Runs lists of different lengths, including empty ones, in every layout.
absl::Status UnevenLists(ConformanceRank& rank) {
  uint64_t seed = 0;
  for (CollectiveKind kind : kDataKinds) {
    for (ListLayout layout : kAllLayouts) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
        for (int variant = 0; variant < 6; ++variant) {
          CollectiveCase c{
              .kind = kind, .dtype = dtype, .layout = layout, .seed = ++seed};
          c.root = static_cast<int>(seed % rank.size());
          for (int i = 0; i < NumCounts(kind, rank.size()); ++i) {
            c.counts.push_back(kCounts[(seed * 7 + i * i * 3 + i) % 10]);
          }
          CH_RETURN_IF_ERROR(rank.Run(c));
        }
      }
    }
  }
  return absl::OkStatus();
}

/// Checks the order of sums, for sizes beyond any block of an engine.
absl::Status OrderOfSums(ConformanceRank& rank) {
  uint64_t seed = 0;
  for (CollectiveKind kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                        DType::kFloat16}) {
      for (ListLayout layout : {ListLayout::kContiguous, ListLayout::kSplit,
                                ListLayout::kInPlace}) {
        for (int64_t count : {127, 20011}) {
          // One dtype suffices for slow cases.
          if (count > 1000 && dtype != DType::kFloat32) continue;
          CollectiveCase c{.kind = kind,
                           .dtype = dtype,
                           .layout = layout,
                           .reals = true,
                           .seed = ++seed};
          c.counts.assign(NumCounts(kind, rank.size()), count);
          CH_RETURN_IF_ERROR(rank.Run(c));
        }
      }
    }
  }
  return absl::OkStatus();
}

/// Runs on rows and columns of a mesh [world / 2, 2] at the same time.
absl::Status Subgroups(ConformanceRank& rank) {
  std::vector<int> row, column;
  for (int r = 0; r < rank.size(); ++r) {
    if (r / 2 == rank.rank() / 2) row.push_back(r);
    if (r % 2 == rank.rank() % 2) column.push_back(r);
  }
  CH_ASSIGN_OR_RETURN(auto tp, rank.world().Group("tp", row, "tp"));
  CH_ASSIGN_OR_RETURN(auto fsdp, rank.world().Group("fsdp", column, "fsdp"));
  CH_ASSIGN_OR_RETURN(auto again, rank.world().Group("tp", row, "tp"));
  if (again != tp) return absl::InternalError("one group, two communicators");
  uint64_t seed = 0;
  for (CollectiveKind kind : kDataKinds) {
    for (int64_t count : kCounts) {
      std::vector<CollectiveRun> runs;
      for (Communicator* comm : {tp.get(), fsdp.get()}) {
        CollectiveCase c{.kind = kind, .seed = ++seed};
        c.counts.assign(NumCounts(kind, comm->size()), count);
        Stream& stream = rank.context().SideStream(comm->name());
        runs.push_back(rank.Prepare(c, *comm));
        CH_RETURN_IF_ERROR(runs.back().Issue(stream));
      }
      CH_RETURN_IF_ERROR(rank.context().Synchronize());
      for (CollectiveRun& run : runs) CH_RETURN_IF_ERROR(run.Check());
    }
  }
  return absl::OkStatus();
}

/// Issues many collectives on two streams with communicators of the same ranks.
/// A blocked stream must not block the other.
absl::Status TwoStreams(ConformanceRank& rank) {
  const std::vector<int> all = rank.world().AllRanks();
  CH_ASSIGN_OR_RETURN(auto a, rank.world().Group("x", all, "a"));
  CH_ASSIGN_OR_RETURN(auto b, rank.world().Group("x", all, "b"));
  if (a == b) return absl::InternalError("two streams, one communicator");
  Stream& stream_a = rank.context().SideStream("a");
  Stream& stream_b = rank.context().SideStream("b");
  for (int round = 0; round < 4; ++round) {
    std::vector<CollectiveRun> runs;
    for (uint64_t i = 0; i < 40; ++i) {
      CollectiveCase c{.kind = kDataKinds[i % 5], .seed = i};
      c.counts.assign(NumCounts(c.kind, rank.size()), kCounts[i % 10]);
      // Ranks issue to the two streams in different orders, if they may.
      const uint64_t shift = rank.engine().any_order_of_streams
                                 ? static_cast<uint64_t>(rank.rank())
                                 : 0;
      const bool to_a = (i + shift) % 2 == 0;
      for (int k = 0; k < 2; ++k) {
        const bool first = to_a == (k == 0);
        runs.push_back(rank.Prepare(c, first ? *a : *b));
        CH_RETURN_IF_ERROR(runs.back().Issue(first ? stream_a : stream_b));
      }
    }
    CH_RETURN_IF_ERROR(rank.context().Synchronize());
    for (CollectiveRun& run : runs) CH_RETURN_IF_ERROR(run.Check());
  }
  return absl::OkStatus();
}

/// Compares the contiguous helpers with the equivalent lists.
absl::Status Helpers(ConformanceRank& rank) {
  const int n = rank.size();
  const int me = rank.rank();
  RankContext& context = rank.context();
  constexpr int64_t kCount = 6;
  const auto allocate = [&](int64_t count) {
    return context.allocator().Allocate(count * int64_t{sizeof(float)},
                                        MemoryClass::kCommunication,
                                        context.compute_stream());
  };
  const auto check = [&](const Block& block, int64_t at, float want) {
    float got = 0;
    rank.engine().copy(&got, block.data() + at * sizeof(float), sizeof(float));
    if (got == want) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(at, ": ", got, " not ", want));
  };
  const std::vector<float> mine(kCount, static_cast<float>(me + 1));
  const Block piece = allocate(kCount);
  const Block whole = allocate(n * kCount);
  // The stream fills an adversarial lease.
  CH_RETURN_IF_ERROR(context.Synchronize());
  rank.engine().copy(piece.data(), mine.data(),
                     kCount * int64_t{sizeof(float)});
  Communicator& comm = rank.comm();
  Stream& stream = rank.stream();
  CH_RETURN_IF_ERROR(AllGather(comm, piece.data(), whole.data(), kCount,
                               kFloat32, stream, "gather"));
  CH_RETURN_IF_ERROR(AllReduce(comm, piece.data(), kCount, kFloat32,
                               ReduceOp::kSum, stream, "reduce"));
  CH_RETURN_IF_ERROR(context.Synchronize());
  const float total = static_cast<float>(n * (n + 1) / 2);
  for (int r = 0; r < n; ++r) {
    CH_RETURN_IF_ERROR(check(whole, r * kCount, static_cast<float>(r + 1)));
  }
  CH_RETURN_IF_ERROR(check(piece, kCount - 1, total));
  CH_RETURN_IF_ERROR(ReduceScatter(comm, whole.data(), piece.data(), kCount,
                                   kFloat32, ReduceOp::kSum, stream,
                                   "scatter"));
  CH_RETURN_IF_ERROR(context.Synchronize());
  CH_RETURN_IF_ERROR(check(piece, 0, static_cast<float>(n * (me + 1))));
  CH_RETURN_IF_ERROR(Broadcast(comm, piece.data(), kCount, kFloat32, n - 1,
                               stream, "broadcast"));
  CH_RETURN_IF_ERROR(context.Synchronize());
  return check(piece, 0, static_cast<float>(n * n));
}

}  // namespace
}  // namespace internal

bool RegisterMovementConformanceTests(ConformanceEngine engine) {
  const internal::EnginePtr shared = internal::Shared(std::move(engine));
  for (const int ranks : shared->world_sizes) {
    const auto add = [&](const std::string& name, internal::Body body,
                         JobOptions options = internal::InTime()) {
      RegisterJob(shared, name, ranks, std::move(body), options);
    };
    for (CollectiveKind kind : internal::kDataKinds) {
      add(Name(kind), [kind](internal::ConformanceRank& rank) {
        return internal::SweepKind(kind, rank);
      });
    }
    add("UnevenLists", internal::UnevenLists);
    add("OrderOfSums", internal::OrderOfSums);
    add("TwoStreams", internal::TwoStreams);
    JobOptions adversarial = internal::InTime();
    adversarial.test.adversarial_seed = static_cast<uint64_t>(ranks);
    add("TwoStreamsAdversarial", internal::TwoStreams, adversarial);
    add("Helpers", internal::Helpers);
    if (ranks % 2 == 0) add("Subgroups", internal::Subgroups);
  }
  return true;
}

}  // namespace crosshatch
