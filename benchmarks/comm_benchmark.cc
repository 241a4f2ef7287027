// SPDX-License-Identifier: Apache-2.0

/// \file
/// Measures time and bandwidth of collectives between rank threads:
///
///   bazel run //benchmarks:comm_benchmark
///
/// `bytes` is the size of the whole buffer of each rank. Prints the median and
/// the 10th to 90th percentile of one collective on rank 0, and the bandwidth
/// at which one rank receives data in GB/s.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status IssueOne(CollectiveKind kind, Communicator& comm, float* part,
                      float* whole, int64_t count, Stream& stream) {
  const int64_t share = count / comm.size();
  switch (kind) {
    case CollectiveKind::kAllGather:
      return AllGather(comm, part, whole, share, kFloat32, stream, "gather");
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(comm, whole, part, share, kFloat32, ReduceOp::kSum,
                           stream, "scatter");
    default:
      return AllReduce(comm, whole, count, kFloat32, ReduceOp::kSum, stream,
                       "reduce");
  }
}

absl::Status Measure(World& world, CollectiveKind kind, int64_t bytes) {
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", all, "comm"));
  Stream& stream = world.context().SideStream("comm");
  const int64_t count = bytes / int64_t{sizeof(float)};
  std::vector<float> whole(count, 1.0f), part(count / world.size(), 1.0f);
  // Small collectives repeat more often than large ones, all at least 15 times.
  const int repeats =
      static_cast<int>(std::clamp<int64_t>((64 << 20) / bytes, 15, 2000));
  std::vector<double> micros;
  for (int i = -3; i < repeats; ++i) {
    const auto begin = Clock::now();
    CH_RETURN_IF_ERROR(
        IssueOne(kind, *comm, part.data(), whole.data(), count, stream));
    stream.Synchronize();
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    if (i >= 0) micros.push_back(time.count());  // Three warm-up runs.
  }
  CH_RETURN_IF_ERROR(world.context().Synchronize());
  if (world.rank() != 0) return absl::OkStatus();
  std::sort(micros.begin(), micros.end());
  const auto quantile = [&](double q) {
    return micros[static_cast<size_t>(q * static_cast<double>(repeats - 1))];
  };
  const auto& stats = comm->stats().by_kind[static_cast<int>(kind)];
  const double moved =
      static_cast<double>(stats.bytes) / static_cast<double>(stats.calls);
  std::printf("%-15s %5d %12lld %12.1f %9.1f .. %-9.1f %8.2f\n", Name(kind),
              world.size(), static_cast<long long>(bytes), quantile(0.5),
              quantile(0.1), quantile(0.9), moved / quantile(0.5) * 1e-3);
  return absl::OkStatus();
}

void Run() {
  std::printf("%-15s %5s %12s %12s %22s %8s\n", "collective", "ranks", "bytes",
              "median us", "10% .. 90%", "GB/s");
  for (CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllReduce}) {
    for (int ranks : {2, 4}) {
      for (int64_t bytes = 4 << 10; bytes <= 16 << 20; bytes *= 8) {
        CH_CHECK_OK(RunLocal(
            ranks, [&](World& world) { return Measure(world, kind, bytes); }));
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch

int main() { crosshatch::Run(); }
