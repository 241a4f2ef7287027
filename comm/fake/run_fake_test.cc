// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class Log final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    lines.push_back(absl::StrCat(event.what, " ", *event.subject, " ",
                                 *event.where, " ", event.bytes));
  }
  std::vector<std::string> lines;
};

/// The observable results of a run.
struct Trace {
  std::vector<std::string> log;
  std::vector<int64_t> counts;
  int64_t peak = 0;
};

/// Every kind of collective, with uneven lists, on the two axes of a mesh
/// [world / 2, 2].
absl::Status Work(World& world, Trace& trace) {
  RankContext& context = world.context();
  std::vector<int> row, column;
  for (int r = 0; r < world.size(); ++r) {
    if (r / 2 == world.rank() / 2) row.push_back(r);
    if (r % 2 == world.rank() % 2) column.push_back(r);
  }
  CH_ASSIGN_OR_RETURN(auto tp, world.Group("tp", row, "tp"));
  CH_ASSIGN_OR_RETURN(auto fsdp, world.Group("fsdp", column, "fsdp"));
  for (Communicator* comm : {tp.get(), fsdp.get()}) {
    Stream& stream = context.SideStream(comm->name());
    const int n = comm->size();
    const int me = comm->rank();
    // Rank r's part has r + 3 elements.
    const int64_t whole = int64_t{n} * (n + 5) / 2;
    Block a = context.allocator().Allocate(whole * 4, MemoryClass::kParameter,
                                           stream);
    Block b = context.allocator().Allocate(
        whole * 4, MemoryClass::kGatheredParameter, stream);
    const auto part = [&](const Block& block, int r) {
      std::byte* data = block.data();
      if (data != nullptr) data += (3 * r + r * (r - 1) / 2) * 4;
      return SegmentList{{.data = data, .run_elems = r + 3}};
    };
    Collective gather{.kind = CollectiveKind::kAllGather, .label = "w"};
    Collective scatter{.kind = CollectiveKind::kReduceScatter, .label = "g"};
    gather.send = {part(a, me)};
    scatter.recv = {part(b, me)};
    for (int r = 0; r < n; ++r) {
      gather.recv.push_back(part(b, r));
      scatter.send.push_back(part(a, r));
    }
    CH_RETURN_IF_ERROR(comm->Issue(gather, stream));
    CH_RETURN_IF_ERROR(comm->Issue(scatter, stream));
    CH_RETURN_IF_ERROR(AllReduce(*comm, a.data(), whole, kFloat32,
                                 ReduceOp::kSum, stream, "norm"));
    CH_RETURN_IF_ERROR(
        Broadcast(*comm, a.data(), whole, kFloat32, n - 1, stream, "b"));
    CH_RETURN_IF_ERROR(Barrier(*comm, stream, "end"));
    for (const auto& count : comm->stats().by_kind) {
      trace.counts.push_back(count.calls);
      trace.counts.push_back(count.bytes);
    }
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                      tp->Exchange("same", "mesh"));
  if (blobs != std::vector<std::string>(tp->size(), "same")) {
    return absl::InternalError("blobs");
  }
  trace.peak = context.allocator().stats().peak_total;
  return context.Synchronize();
}

TEST(RunFake, LeavesTheSameTraceAsARealRun) {
  for (int ranks : {2, 4, 6}) {
    std::vector<Log> logs(ranks);
    std::vector<Trace> real(ranks);
    JobOptions options;
    for (Log& log : logs) options.sinks.push_back(&log);
    const absl::Status status = RunLocal(
        ranks, [&](World& world) { return Work(world, real[world.rank()]); },
        options);
    ASSERT_TRUE(status.ok()) << status;
    for (int rank = 0; rank < ranks; ++rank) {
      Log log;
      Trace fake;
      const absl::Status fake_status =
          RunFake({.world_size = ranks, .rank = rank, .sink = &log},
                  [&](World& world) { return Work(world, fake); });
      ASSERT_TRUE(fake_status.ok()) << fake_status;
      EXPECT_EQ(log.lines, logs[rank].lines);
      EXPECT_EQ(fake.counts, real[rank].counts);
      EXPECT_EQ(fake.peak, real[rank].peak);
      EXPECT_GT(fake.counts[1], 0);
    }
  }
}

TEST(RunFake, IsOneRankOfAnyWorld) {
  const absl::Status status =
      RunFake({.world_size = 1024, .rank = 1000}, [](World& world) {
        if (world.engine() == "fake" && world.rank() == 1000 &&
            world.size() == 1024 && world.device().is_meta() &&
            !world.Group("g", {0, 1}, "s").ok()) {
          return absl::OkStatus();
        }
        return absl::InternalError("another world");
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RunFake, RefusesARankThatDoesNotExist) {
  const auto fn = [](World&) { return absl::OkStatus(); };
  for (int rank : {-1, 4}) {
    const absl::Status status = RunFake({.world_size = 4, .rank = rank}, fn);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(RunFake, AbortComesOutAsTheResult) {
  EXPECT_EQ(
      RunFake({},
              [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(auto comm,
                                    world.Group("g", {0}, "compute"));
                comm->Abort(absl::DataLossError("nan"));
                EXPECT_FALSE(comm->Exchange("", "x").ok());
                return Barrier(*comm, world.context().compute_stream(), "b");
              }),
      absl::DataLossError("group 'g' (ranks 0) was aborted by rank 0: nan"));
  EXPECT_EQ(RunFake({},
                    [](World& world) {
                      world.Abort(absl::InternalError("stop"));
                      return absl::OkStatus();
                    }),
            absl::InternalError("stop"));
}

}  // namespace
}  // namespace crosshatch
