// SPDX-License-Identifier: Apache-2.0
//
// The engine of processes on UCX, with threads as processes. Each has its own
// UCX context.

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/world.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// UcxJoin::gather between threads.
class ThreadGather {
 public:
  explicit ThreadGather(int size) : size_(static_cast<size_t>(size)) {}

  std::vector<std::string> Gather(size_t rank, std::string blob) {
    std::unique_lock lock(mutex_);
    // A thread that is early for the next round waits until the others have
    // left.
    changed_.wait(lock, [this] { return !is_leaving_; });
    blobs_.resize(size_);
    blobs_[rank] = std::move(blob);
    is_leaving_ = ++inside_ == size_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_leaving_; });
    std::vector<std::string> all = blobs_;
    is_leaving_ = --inside_ > 0;
    changed_.notify_all();
    return all;
  }

 private:
  const size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> blobs_;
  size_t inside_ = 0;
  bool is_leaving_ = false;
};

absl::Status RunThreads(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                        JobOptions options) {
  options.threads_per_rank = 1;
  ThreadGather gather(ranks);
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const UcxJoin join{
          .rank = rank, .size = ranks, .gather = [&](std::string blob) {
            return gather.Gather(static_cast<size_t>(rank), std::move(blob));
          }};
      results[rank] = RunMpi(fn, {.job = options, .ucx = &join});
    });
  }
  for (std::thread& thread : threads) thread.join();
  // All ranks of a job have one result.
  for (const absl::Status& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

const bool registered =
    RegisterCommunicatorConformanceTests({.name = "Ucx",
                                          .run = RunThreads,
                                          .world_sizes = {1, 3, 5},
                                          .exact_stalls = false});

}  // namespace
}  // namespace crosshatch
