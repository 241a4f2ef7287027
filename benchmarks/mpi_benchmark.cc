// SPDX-License-Identifier: Apache-2.0
//
// Time of collectives between processes, beside MPI's own and those between
// rank threads, and what the comparison of fingerprints costs:
//
//   bazel build //benchmarks:mpi_benchmark
//   mpirun -np 4 --oversubscribe --bind-to none
//   bazel-bin/benchmarks/mpi_benchmark
//
// `bytes` is the size of the whole buffer of each rank. Medians of one
// collective, seen from rank 0, in microseconds. A barrier moves no data: its
// time is what it takes all ranks to say what they have come to and to compare.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kBarrier};

/// Of each kind and size, the medians of one way to do it.
using Table = std::vector<std::vector<double>>;

std::vector<int64_t> SizesOf(CollectiveKind kind) {
  if (kind == CollectiveKind::kBarrier) return {0};
  std::vector<int64_t> sizes;
  for (int64_t bytes = 4 << 10; bytes <= 16 << 20; bytes *= 4) {
    sizes.push_back(bytes);
  }
  return sizes;
}

double MedianMicros(int64_t bytes, const std::function<void()>& once) {
  const int repeats =
      static_cast<int>(std::clamp<int64_t>((64 << 20) / (bytes + 1), 15, 2000));
  std::vector<double> micros;
  for (int i = -3; i < repeats; ++i) {
    const auto begin = Clock::now();
    once();
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    if (i >= 0) micros.push_back(time.count());  // Three to warm up.
  }
  std::nth_element(micros.begin(), micros.begin() + repeats / 2, micros.end());
  return micros[static_cast<size_t>(repeats / 2)];
}

struct Buffers {
  explicit Buffers(int64_t bytes, int ranks)
      : count(bytes / int64_t{sizeof(float)}),
        whole(static_cast<size_t>(count), 1.0f),
        part(static_cast<size_t>(count / ranks), 1.0f) {}
  int64_t count;
  std::vector<float> whole;
  std::vector<float> part;
};

absl::Status IssueOne(CollectiveKind kind, Communicator& comm, Buffers& b,
                      Stream& stream) {
  const int64_t share = b.count / comm.size();
  switch (kind) {
    case CollectiveKind::kAllGather:
      return AllGather(comm, b.part.data(), b.whole.data(), share, kFloat32,
                       stream, "gather");
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(comm, b.whole.data(), b.part.data(), share, kFloat32,
                           ReduceOp::kSum, stream, "scatter");
    case CollectiveKind::kAllReduce:
      return AllReduce(comm, b.whole.data(), b.count, kFloat32, ReduceOp::kSum,
                       stream, "reduce");
    default:
      return Barrier(comm, stream, "barrier");
  }
}

absl::StatusOr<Table> MeasureEngine(World& world) {
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", all, "comm"));
  Stream& stream = world.context().SideStream("comm");
  Table table;
  for (CollectiveKind kind : kKinds) {
    table.emplace_back();
    for (int64_t bytes : SizesOf(kind)) {
      Buffers buffers(bytes, world.size());
      absl::Status status;
      table.back().push_back(MedianMicros(bytes, [&] {
        if (status.ok()) status = IssueOne(kind, *comm, buffers, stream);
        stream.Synchronize();
      }));
      CH_RETURN_IF_ERROR(status);
      CH_RETURN_IF_ERROR(world.context().Synchronize());
    }
  }
  return table;
}

Table MeasureMpi(int ranks) {
  Table table;
  for (CollectiveKind kind : kKinds) {
    table.emplace_back();
    for (int64_t bytes : SizesOf(kind)) {
      Buffers b(bytes, ranks);
      const int share = static_cast<int>(b.count / ranks);
      table.back().push_back(MedianMicros(bytes, [&] {
        switch (kind) {
          case CollectiveKind::kAllGather:
            MPI_Allgather(b.part.data(), share, MPI_FLOAT, b.whole.data(),
                          share, MPI_FLOAT, MPI_COMM_WORLD);
            break;
          case CollectiveKind::kReduceScatter:
            MPI_Reduce_scatter_block(b.whole.data(), b.part.data(), share,
                                     MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            break;
          case CollectiveKind::kAllReduce:
            MPI_Allreduce(MPI_IN_PLACE, b.whole.data(),
                          static_cast<int>(b.count), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
            break;
          default:
            MPI_Barrier(MPI_COMM_WORLD);
            break;
        }
      }));
    }
  }
  return table;
}

void Run() {
  Table engine, local;
  int rank = 0;
  int ranks = 1;
  CH_CHECK_OK(RunMpi([&](World& world) -> absl::Status {
    rank = world.rank();
    ranks = world.size();
    CH_ASSIGN_OR_RETURN(engine, MeasureEngine(world));
    return absl::OkStatus();
  }));
  const Table mpi = MeasureMpi(ranks);
  // Threads of the first process; the others wait without spinning.
  if (rank == 0) {
    CH_CHECK_OK(RunLocal(ranks, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(Table table, MeasureEngine(world));
      if (world.rank() == 0) local = table;
      return absl::OkStatus();
    }));
  }
  CH_CHECK_OK(RunMpi([](World&) { return absl::OkStatus(); }));
  if (rank != 0) return;
  std::printf("%d ranks, microseconds\n%-15s %12s %10s %10s %10s\n", ranks,
              "collective", "bytes", "processes", "MPI's own", "threads");
  for (size_t k = 0; k < std::size(kKinds); ++k) {
    const std::vector<int64_t> sizes = SizesOf(kKinds[k]);
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::printf("%-15s %12lld %10.1f %10.1f %10.1f\n", Name(kKinds[k]),
                  static_cast<long long>(sizes[i]), engine[k][i], mpi[k][i],
                  local[k][i]);
    }
  }
}

}  // namespace
}  // namespace crosshatch

int main() { crosshatch::Run(); }
