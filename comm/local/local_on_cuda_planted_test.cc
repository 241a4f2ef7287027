// SPDX-License-Identifier: Apache-2.0

/// \file
/// Each wait of a device's queue in a collective, left out: the data then
/// differ on some rank.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/emulated_cuda_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/context_decorator.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kCount = 30;
constexpr int kNone = -1;

// Leaves out a wait of the stream "comm", or is late after each of them.
class PlantedStream final : public Stream {
 public:
  PlantedStream(std::unique_ptr<Stream> stream, int left_out, bool is_late,
                int& waits)
      : Stream(stream->name(), nullptr),
        stream_(std::move(stream)),
        left_out_(left_out),
        is_late_(is_late),
        waits_(waits) {}

  Event Record() override { return stream_->Record(); }
  void Wait(const Event& event) override {
    if (name() != "comm") return stream_->Wait(event);
    if (waits_++ != left_out_) stream_->Wait(event);
    if (!is_late_) return;
    stream_->LaunchHost([](KernelContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    });
  }
  void Synchronize() override { stream_->Synchronize(); }
  AgentId agent() const override { return stream_->agent(); }

 private:
  void Enqueue(Task task) override { stream_->Launch(std::move(task)); }
  void EnqueueHost(Task task) override { stream_->LaunchHost(std::move(task)); }

  const std::unique_ptr<Stream> stream_;
  const int left_out_;
  const bool is_late_;
  int& waits_;
};

class Planter final : public ContextDecorator {
 public:
  Planter(int left_out, bool is_late)
      : left_out_(left_out), is_late_(is_late) {}
  std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) override {
    return std::make_unique<PlantedStream>(std::move(stream), left_out_,
                                           is_late_, waits_);
  }
  std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) override {
    return allocator;
  }
  int waits() const { return waits_; }

 private:
  const int left_out_;
  const bool is_late_;
  int waits_ = 0;
};

// What all ranks have of a sum, whose summands are made late and overwritten
// soon. Rank 0 leaves out a wait; the others are late.
std::vector<float> Sums(int left_out, int* waits = nullptr) {
  Planter hasty(left_out, /*is_late=*/false);
  Planter late(kNone, /*is_late=*/true);
  std::vector<std::vector<float>> sums(kRanks);
  const absl::Status status = RunLocal(
      kRanks,
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all,
                            world.Group("all", world.AllRanks(), "comm"));
        RankContext& context = world.context();
        Stream& comm = context.SideStream("comm");
        const Tensor from = Zeros({kCount});
        const Tensor to = Zeros({kCount});
        const Tensor mine = Zeros({kCount});
        comm.Wait(context.compute_stream().Record());
        {
          const StreamScope scope(comm);
          FillInPlace(from, world.rank() + 1);
        }
        Collective c{.kind = CollectiveKind::kAllReduce, .label = "sum"};
        c.send = {{{.data = from.raw_data(), .run_elems = kCount}}};
        c.recv = {{{.data = to.raw_data(), .run_elems = kCount}}};
        CH_RETURN_IF_ERROR(all->Issue(c, comm));
        {
          // What comes after the collective, in the order of its stream.
          const StreamScope scope(comm);
          CopyInPlace(mine, to);
          FillInPlace(from, 1000);
          FillInPlace(to, 1000);
        }
        context.compute_stream().Wait(comm.Record());
        sums[static_cast<size_t>(world.rank())] = mine.ToVector<float>();
        return absl::OkStatus();
      },
      {.backends = OnEmulatedCuda(kRanks, 2),
       .decorators = {&hasty, &late, &late}});
  EXPECT_TRUE(status.ok()) << status;
  if (waits != nullptr) *waits = hasty.waits();
  std::vector<float> joined;
  for (const auto& sum : sums) {
    joined.insert(joined.end(), sum.begin(), sum.end());
  }
  return joined;
}

TEST(LocalOnCudaPlantedTest, EachWaitLeftOutShows) {
  const std::vector<float> right(kRanks * kCount, 1 + 2 + 3);
  int waits = 0;
  ASSERT_EQ(Sums(kNone, &waits), right);
  // The test's own, then for each peer before the collective, after its sum and
  // after its part.
  EXPECT_EQ(waits, 1 + 3 * (kRanks - 1));
  for (int wait = 1; wait < waits; ++wait) {
    int tries = 1;
    while (tries < 50 && Sums(wait) == right) ++tries;
    EXPECT_LT(tries, 50) << "wait " << wait << " may be left out";
  }
}

}  // namespace
}  // namespace crosshatch
