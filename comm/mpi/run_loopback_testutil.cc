// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/run_loopback_testutil.h"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "crosshatch/base/status_macros.h"

namespace crosshatch::internal {
namespace {

/// Elements of a rank's list in a LongGather.
constexpr size_t kLongCount = 1000;

}  // namespace

void FailureChannelForTest::Report(const FailureNotice& notice) {
  {
    std::lock_guard lock(reported_mutex_);
    reported_.push_back(notice);
  }
  if (coordinator_ != nullptr) coordinator_->OnReport(notice);
}

absl::Status FailureChannelForTest::loss() const {
  std::lock_guard lock(mutex_);
  for (const FailureNotice& notice : notices_) {
    if (notice.process_lost || notice.cut_off) return ResultOf(notice);
  }
  return absl::OkStatus();
}

void FailureChannelForTest::OnFailure(Listener listener) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  for (const FailureNotice& notice : notices_) {
    if (listener_) listener_(notice);
  }
}

void FailureChannelForTest::SetActivity(Activity activity) {
  std::lock_guard lock(activity_mutex_);
  activity_ = std::move(activity);
}

void FailureChannelForTest::Deliver(const FailureNotice& notice) {
  std::lock_guard lock(mutex_);
  notices_.push_back(notice);
  if (listener_) listener_(notice);
}

std::string FailureChannelForTest::Query() {
  std::lock_guard lock(activity_mutex_);
  return activity_ ? activity_() : "";
}

std::vector<FailureNotice> FailureChannelForTest::reported() const {
  std::lock_guard lock(reported_mutex_);
  return reported_;
}

CoordinatorForTest::CoordinatorForTest(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    channels_.push_back(std::make_unique<FailureChannelForTest>(this));
  }
}

void CoordinatorForTest::OnReport(const FailureNotice& notice) {
  std::lock_guard lock(mutex_);
  if (std::exchange(is_decided_, true)) return;
  for (const auto& channel : channels_) channel->Deliver(notice);
}

std::vector<ProcessResult> RunLoopback(
    LoopbackWire& wire, int ranks, absl::FunctionRef<absl::Status(World&)> fn,
    absl::FunctionRef<MpiOptions(int rank)> options,
    const std::function<void(int rank)>& returned) {
  std::vector<ProcessResult> results(static_cast<size_t>(ranks));
  // The links outlive what others send to them.
  std::vector<std::unique_ptr<Link>> links;
  for (int rank = 0; rank < ranks; ++rank) links.push_back(wire.End(rank));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      MpiOptions of_rank = options(rank);
      of_rank.job.threads_per_rank = 1;
      results[rank] = RunProcess(*links[rank], fn, of_rank);
      if (returned) returned(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void SleepUntil(absl::FunctionRef<bool()> condition) {
  while (!condition()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

LongGather::LongGather(World& world)
    : world_(world),
      mine_(kLongCount, static_cast<float>(world.rank() + 1)),
      all_(kLongCount * static_cast<size_t>(world.size())) {}

absl::Status LongGather::Issue() {
  CH_ASSIGN_OR_RETURN(auto comm,
                      world_.Group("all", world_.AllRanks(), "comm"));
  return AllGather(*comm, mine_.data(), all_.data(), kLongCount, kFloat32,
                   world_.context().SideStream("comm"), "weights");
}

}  // namespace crosshatch::internal
