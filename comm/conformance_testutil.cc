// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_testutil.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/conformance_case.h"
#include "crosshatch/comm/conformance_contract.h"
#include "crosshatch/comm/conformance_faults.h"
#include "crosshatch/comm/conformance_rank.h"
#include "gtest/gtest.h"

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
constexpr CollectiveKind kDataKinds[] = {
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
    CollectiveKind::kBroadcast};
constexpr int64_t kCounts[] = {0, 1, 3, 5, 7, 13, 31, 64, 127, 1000};

/// Returns the number of counts of a case.
size_t NumCounts(CollectiveKind kind, int n) {
  if (kind == CollectiveKind::kAllToAll) return static_cast<size_t>(n) * n;
  if (kind == CollectiveKind::kAllReduce ||
      kind == CollectiveKind::kBroadcast) {
    return 1;
  }
  return n;
}

/// Runs every count with every dtype and, for reductions, every op.
absl::Status SweepKind(CollectiveKind kind, const ConformanceEngine& engine,
                       World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
  uint64_t seed = 0;
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllOps) {
      if (!IsReduction(kind) && op != ReduceOp::kSum) continue;
      if (IsReduction(kind) && dtype == DType::kBool) continue;
      if (op == ReduceOp::kAvg && !IsFloatingPoint(dtype)) continue;
      for (int64_t count : kCounts) {
        CollectiveCase c{
            .kind = kind, .dtype = dtype, .op = op, .seed = ++seed};
        c.counts.assign(NumCounts(kind, world.size()), count);
        c.root = static_cast<int>(seed % world.size());
        if (IsFloatingPoint(dtype) && seed % 3 == 0) c.scale = 0.625;
        CH_RETURN_IF_ERROR(rank.Run(c));
      }
    }
  }
  return absl::OkStatus();
}

/// Runs lists of different lengths, including empty ones, in every layout.
absl::Status UnevenLists(const ConformanceEngine& engine, World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
  uint64_t seed = 0;
  for (CollectiveKind kind : kDataKinds) {
    for (ListLayout layout : kAllLayouts) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
        for (int variant = 0; variant < 6; ++variant) {
          CollectiveCase c{
              .kind = kind, .dtype = dtype, .layout = layout, .seed = ++seed};
          c.root = static_cast<int>(seed % world.size());
          for (size_t i = 0; i < NumCounts(kind, world.size()); ++i) {
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
absl::Status OrderOfSums(const ConformanceEngine& engine, World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
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
          c.counts.assign(NumCounts(kind, world.size()), count);
          CH_RETURN_IF_ERROR(rank.Run(c));
        }
      }
    }
  }
  return absl::OkStatus();
}

/// Runs on rows and columns of a mesh [world / 2, 2] at the same time.
constexpr absl::Duration kShortTimeout = absl::Milliseconds(500);

/// Ranks that others do not need may end first, for longer than the timeout.
absl::Status WorkOnWithoutRankZero(const ConformanceEngine& /*engine*/,
                                   World& world) {
  if (world.rank() == 0) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(auto others, world.Group("others", {1, 2}, "comm"));
  const auto began = std::chrono::steady_clock::now();
  bool goes_on = true;
  while (goes_on) {
    const bool mine = absl::FromChrono(std::chrono::steady_clock::now() -
                                       began) < 3 * kShortTimeout;
    CH_ASSIGN_OR_RETURN(const auto all,
                        others->Exchange(mine ? "on" : "", "step"));
    goes_on = !all[0].empty();
  }
  return absl::OkStatus();
}

absl::Status Subgroups(const ConformanceEngine& engine, World& world) {
  std::vector<int> row, column;
  for (int r = 0; r < world.size(); ++r) {
    if (r / 2 == world.rank() / 2) row.push_back(r);
    if (r % 2 == world.rank() % 2) column.push_back(r);
  }
  CH_ASSIGN_OR_RETURN(auto tp, world.Group("tp", row, "tp"));
  CH_ASSIGN_OR_RETURN(auto fsdp, world.Group("fsdp", column, "fsdp"));
  CH_ASSIGN_OR_RETURN(auto again, world.Group("tp", row, "tp"));
  if (again != tp) return absl::InternalError("one group, two communicators");
  uint64_t seed = 0;
  for (CollectiveKind kind : kDataKinds) {
    for (int64_t count : kCounts) {
      std::vector<CollectiveRun> runs;
      for (Communicator* comm : {tp.get(), fsdp.get()}) {
        CollectiveCase c{.kind = kind, .seed = ++seed};
        c.counts.assign(NumCounts(kind, comm->size()), count);
        Stream& stream = world.context().SideStream(comm->name());
        runs.emplace_back(engine, world, *comm, c);
        CH_RETURN_IF_ERROR(runs.back().Issue(stream));
      }
      CH_RETURN_IF_ERROR(world.context().Synchronize());
      for (CollectiveRun& run : runs) CH_RETURN_IF_ERROR(run.Check());
    }
  }
  return absl::OkStatus();
}

/// Issues many collectives on two streams with communicators of the same ranks.
/// A blocked stream must not block the other.
absl::Status TwoStreams(const ConformanceEngine& engine, World& world) {
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  CH_ASSIGN_OR_RETURN(auto a, world.Group("x", all, "a"));
  CH_ASSIGN_OR_RETURN(auto b, world.Group("x", all, "b"));
  if (a == b) return absl::InternalError("two streams, one communicator");
  Stream& stream_a = world.context().SideStream("a");
  Stream& stream_b = world.context().SideStream("b");
  for (int round = 0; round < 4; ++round) {
    std::vector<CollectiveRun> runs;
    for (uint64_t i = 0; i < 40; ++i) {
      CollectiveCase c{.kind = kDataKinds[i % 5], .seed = i};
      c.counts.assign(NumCounts(c.kind, world.size()), kCounts[i % 10]);
      // Ranks issue to the two streams in different orders, if they may.
      const uint64_t shift =
          engine.any_order_of_streams ? static_cast<uint64_t>(world.rank()) : 0;
      const bool to_a = (i + shift) % 2 == 0;
      for (int k = 0; k < 2; ++k) {
        const bool first = to_a == (k == 0);
        runs.emplace_back(engine, world, first ? *a : *b, c);
        CH_RETURN_IF_ERROR(runs.back().Issue(first ? stream_a : stream_b));
      }
    }
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    for (CollectiveRun& run : runs) CH_RETURN_IF_ERROR(run.Check());
  }
  return absl::OkStatus();
}

absl::Status Barriers(const ConformanceEngine& engine, World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
  for (int i = 0; i < 100; ++i) {
    CH_RETURN_IF_ERROR(Barrier(rank.comm(), rank.stream(), "barrier"));
  }
  return world.context().Synchronize();
}

absl::Status Exchanges(const ConformanceEngine& engine, World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
  for (int i = 0; i < 50; ++i) {
    const auto blob_of = [&](int r) { return std::string(r * i, 'a' + r); };
    CH_ASSIGN_OR_RETURN(
        const std::vector<std::string> blobs,
        rank.comm().Exchange(blob_of(world.rank()), absl::StrCat("e", i)));
    if (blobs.size() != static_cast<size_t>(world.size())) {
      return absl::InternalError(absl::StrCat(blobs.size(), " blobs"));
    }
    for (int r = 0; r < world.size(); ++r) {
      if (blobs[r] != blob_of(r)) return absl::InternalError(blobs[r]);
    }
  }
  return absl::OkStatus();
}

/// Compares the contiguous helpers with the equivalent lists.
absl::Status Helpers(const ConformanceEngine& engine, World& world) {
  CH_ASSIGN_OR_RETURN(ConformanceRank rank,
                      ConformanceRank::Create(engine, world));
  const int n = world.size();
  const int me = world.rank();
  RankContext& context = world.context();
  constexpr int64_t kCount = 6;
  const auto allocate = [&](int64_t count) {
    return context.allocator().Allocate(count * int64_t{sizeof(float)},
                                        MemoryClass::kCommunication,
                                        context.compute_stream());
  };
  const auto check = [&](const Block& block, int64_t at, float want) {
    float got = 0;
    engine.copy(&got, block.data() + at * sizeof(float), sizeof(float));
    if (got == want) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(at, ": ", got, " not ", want));
  };
  const std::vector<float> mine(kCount, static_cast<float>(me + 1));
  const Block piece = allocate(kCount);
  const Block whole = allocate(n * kCount);
  // The stream fills an adversarial lease.
  CH_RETURN_IF_ERROR(context.Synchronize());
  engine.copy(piece.data(), mine.data(), kCount * int64_t{sizeof(float)});
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

class ConformanceTest : public testing::Test {
 public:
  explicit ConformanceTest(std::function<void()> body)
      : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  const std::function<void()> body_;
};

void Register(const ConformanceEngine& engine, const std::string& name,
              std::function<void()> body) {
  testing::RegisterTest(absl::StrCat(engine.name, "Conformance").c_str(),
                        name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [body = std::move(body)]() -> ConformanceTest* {
                          return new ConformanceTest(body);
                        });
}

using Body =
    std::function<absl::Status(const ConformanceEngine& engine, World& world)>;

void RegisterDataTest(
    std::shared_ptr<const ConformanceEngine> engine, const std::string& name,
    int ranks, Body body, uint64_t adversarial_seed = 0,
    absl::Duration timeout = ConformanceRunOptions{}.timeout) {
  Register(*engine, absl::StrCat(name, "/", ranks), [=] {
    const absl::Status status =
        engine->run(ranks, [&](World& world) { return body(*engine, world); },
                    {.timeout = timeout, .adversarial_seed = adversarial_seed});
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
}

std::shared_ptr<const ConformanceEngine> Shared(ConformanceEngine engine) {
  if (!engine.copy) {
    engine.copy = [](void* to, const void* from, int64_t bytes) {
      if (bytes > 0) std::memcpy(to, from, bytes);
    };
  }
  return std::make_shared<const ConformanceEngine>(std::move(engine));
}

void RegisterAgreement(const std::shared_ptr<const ConformanceEngine>& shared) {
  for (int n : shared->world_sizes) {
    for (ContractTest& test : ContractTests(shared, n)) {
      Register(*shared, absl::StrCat(test.name, "/", n), std::move(test.body));
    }
    if (!shared->has_peers) continue;
    RegisterDataTest(shared, "Barriers", n, Barriers);
    RegisterDataTest(shared, "Exchanges", n, Exchanges);
    if (n == 3) {
      RegisterDataTest(shared, "RanksThatWorkOnMayOutliveOthers", n,
                       WorkOnWithoutRankZero, /*adversarial_seed=*/0,
                       kShortTimeout);
    }
    for (FaultTest& test : FaultTests(shared, n)) {
      Register(*shared, absl::StrCat(test.name, "/", n), std::move(test.body));
    }
  }
}

void RegisterMovement(const std::shared_ptr<const ConformanceEngine>& shared) {
  if (!shared->has_peers) return;
  for (int n : shared->world_sizes) {
    for (CollectiveKind kind : kDataKinds) {
      RegisterDataTest(shared, Name(kind), n,
                       [kind](const ConformanceEngine& e, World& world) {
                         return SweepKind(kind, e, world);
                       });
    }
    RegisterDataTest(shared, "UnevenLists", n, UnevenLists);
    RegisterDataTest(shared, "OrderOfSums", n, OrderOfSums);
    RegisterDataTest(shared, "TwoStreams", n, TwoStreams);
    RegisterDataTest(shared, "TwoStreamsAdversarial", n, TwoStreams,
                     /*adversarial_seed=*/n);
    RegisterDataTest(shared, "Helpers", n, Helpers);
    if (n % 2 == 0) RegisterDataTest(shared, "Subgroups", n, Subgroups);
  }
}

}  // namespace
}  // namespace internal

bool RegisterAgreementConformanceTests(ConformanceEngine engine) {
  internal::RegisterAgreement(internal::Shared(std::move(engine)));
  return true;
}

bool RegisterMovementConformanceTests(ConformanceEngine engine) {
  internal::RegisterMovement(internal::Shared(std::move(engine)));
  return true;
}

bool RegisterCommunicatorConformanceTests(ConformanceEngine engine) {
  const auto shared = internal::Shared(std::move(engine));
  internal::RegisterAgreement(shared);
  internal::RegisterMovement(shared);
  return true;
}

}  // namespace crosshatch
