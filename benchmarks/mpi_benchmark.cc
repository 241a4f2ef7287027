// SPDX-License-Identifier: Apache-2.0

/// \file
/// Measures collectives between processes by the MPI and UCX engines, MPI's own
/// collectives, those between rank threads, and the comparison of fingerprints:
///
///   bazel build //benchmarks:mpi_benchmark
///   mpirun -np 4 --oversubscribe --bind-to none
///   bazel-bin/benchmarks/mpi_benchmark
///
/// `bytes` is the size of the whole buffer of each rank. Prints medians of one
/// collective on rank 0 in microseconds. A barrier moves no data, so its time
/// is that of exchanging and comparing fingerprints. The line below the table
/// is the comparison alone. The last table is the time to send 1 MiB in runs:
/// as an MPI derived datatype, or packed first, as the engine does.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kBarrier};

/// The medians of one engine, by collective kind and size.
using Table = std::vector<std::vector<double>>;

std::vector<int64_t> SizesOf(CollectiveKind kind) {
  if (kind == CollectiveKind::kBarrier) return {0};
  std::vector<int64_t> sizes = {64};
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
    if (i >= 0) micros.push_back(time.count());  // Three warm-up runs.
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
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", world.AllRanks(), "comm"));
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

void Print(int ranks, const Table& by_mpi, const Table& by_ucx,
           const Table& mpi, const Table& local) {
  std::printf("%d ranks, microseconds\n%-15s %12s %10s %10s %10s %10s\n", ranks,
              "collective", "bytes", "by MPI", "by UCX", "MPI's own",
              "threads");
  for (size_t k = 0; k < std::size(kKinds); ++k) {
    const std::vector<int64_t> sizes = SizesOf(kKinds[k]);
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::printf("%-15s %12lld %10.1f %10.1f %10.1f %10.1f\n", Name(kKinds[k]),
                  static_cast<long long>(sizes[i]), by_mpi[k][i], by_ucx[k][i],
                  mpi[k][i], local[k][i]);
    }
  }
}

/// Returns the time to compare the fingerprints of `ranks` members.
double ComparingMicros(int ranks) {
  std::vector<int> all;
  std::vector<Fingerprint> fingerprints(static_cast<size_t>(ranks));
  std::vector<const Fingerprint*> pointers;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(r);
    Fingerprint& each = fingerprints[static_cast<size_t>(r)];
    each.kind = CollectiveKind::kAllReduce;
    each.label = "layers.0.attention";
    each.send = {65536};
    each.recv = {65536};
    pointers.push_back(&each);
  }
  constexpr int kTimes = 1000;
  return MedianMicros(
             1 << 20,
             [&] {
               for (int i = 0; i < kTimes; ++i) {
                 CH_CHECK_OK(CheckAgreement("group 'all'", all, pointers));
               }
             }) /
         kTimes;
}

constexpr int64_t kStridedBytes = 1 << 20;

/// Returns the time of `send` from rank 0 to rank 1, including the answer.
double MicrosToRank1(int rank, const std::function<void()>& send) {
  std::vector<char> received(kStridedBytes);
  return MedianMicros(kStridedBytes, [&] {
    char done = 0;
    if (rank == 0) {
      send();
      MPI_Recv(&done, 1, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(received.data(), static_cast<int>(kStridedBytes), MPI_BYTE, 0, 0,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(&done, 1, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
  });
}

/// Measures sending every second run of a buffer.
void MeasureRuns(int rank) {
  if (rank > 1) return;
  if (rank == 0) {
    std::printf("\n1 MiB in runs of\n%15s %15s %10s\n", "bytes", "derived type",
                "packed");
  }
  std::vector<float> buffer(2 * kStridedBytes / sizeof(float), 1.0f);
  std::vector<float> packed(kStridedBytes / sizeof(float));
  for (int64_t run = 64; run <= kStridedBytes / 4; run *= 8) {
    const int64_t elems = run / int64_t{sizeof(float)};
    const int64_t runs = kStridedBytes / run;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(static_cast<int>(runs), static_cast<int>(elems),
                    static_cast<int>(2 * elems), MPI_FLOAT, &type);
    MPI_Type_commit(&type);
    const double derived = MicrosToRank1(
        rank, [&] { MPI_Send(buffer.data(), 1, type, 1, 0, MPI_COMM_WORLD); });
    MPI_Type_free(&type);
    const Segment from{.data = buffer.data(),
                       .run_elems = elems,
                       .runs = runs,
                       .stride_elems = 2 * elems};
    const Segment to{.data = packed.data(), .run_elems = runs * elems};
    const double copied = MicrosToRank1(rank, [&] {
      CopySegments(SegmentCursor({&from, 1}, sizeof(float)),
                   SegmentCursor({&to, 1}, sizeof(float)), runs * elems,
                   sizeof(float));
      MPI_Send(packed.data(), static_cast<int>(kStridedBytes), MPI_BYTE, 1, 0,
               MPI_COMM_WORLD);
    });
    if (rank == 0) {
      std::printf("%15lld %15.1f %10.1f\n", static_cast<long long>(run),
                  derived, copied);
    }
  }
}

void Run() {
  Table by_mpi, by_ucx, local;
  int rank = 0;
  int ranks = 1;
  CH_CHECK_OK(RunMpi([&](World& world) -> absl::Status {
    rank = world.rank();
    ranks = world.size();
    CH_ASSIGN_OR_RETURN(by_mpi, MeasureEngine(world));
    return absl::OkStatus();
  }));
  const UcxJoin join = {.rank = rank, .size = ranks, .gather = ExchangeByMpi};
  CH_CHECK_OK(RunMpi(
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(by_ucx, MeasureEngine(world));
        return absl::OkStatus();
      },
      {.ucx = &join}));
  const Table mpi = MeasureMpi(ranks);
  // The first process runs threads; the others wait without spinning.
  if (rank == 0) {
    CH_CHECK_OK(RunLocal(ranks, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(Table table, MeasureEngine(world));
      if (world.rank() == 0) local = table;
      return absl::OkStatus();
    }));
  }
  CH_CHECK_OK(RunMpi([](World&) { return absl::OkStatus(); }));
  if (rank == 0) {
    Print(ranks, by_mpi, by_ucx, mpi, local);
    std::printf("comparing what %d ranks have come to: %.2f\n", ranks,
                ComparingMicros(ranks));
  }
  if (ranks > 1) MeasureRuns(rank);
  // No rank spins in MPI while others measure.
  CH_CHECK_OK(RunMpi([](World&) { return absl::OkStatus(); }));
}

}  // namespace
}  // namespace crosshatch

int main() { crosshatch::Run(); }
