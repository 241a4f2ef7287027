// SPDX-License-Identifier: Apache-2.0

/// \file
/// Skips each wait of a device's queue in a collective. The data must then
/// differ on some rank.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/on_cuda_testutil.h"
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

using std::chrono::milliseconds;

constexpr milliseconds kPunctual(0);
constexpr milliseconds kLittle(3);
constexpr milliseconds kMost(96);

// Skips a wait of the stream "comm", or delays the stream after each wait.
class FaultyStream final : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> stream, int left_out, milliseconds late,
               int& waits)
      : Stream(stream->name(), nullptr),
        stream_(std::move(stream)),
        left_out_(left_out),
        late_(late),
        waits_(waits) {}

  Event Record() override { return stream_->Record(); }
  void Wait(const Event& event) override {
    if (name() != "comm") return stream_->Wait(event);
    if (waits_++ != left_out_) stream_->Wait(event);
    if (late_ == kPunctual) return;
    stream_->LaunchHost(
        [late = late_](KernelContext&) { std::this_thread::sleep_for(late); });
  }
  void Synchronize() override { stream_->Synchronize(); }
  AgentId agent() const override { return stream_->agent(); }

 private:
  void Enqueue(Task task) override { stream_->Launch(std::move(task)); }
  void EnqueueHost(Task task) override { stream_->LaunchHost(std::move(task)); }

  const std::unique_ptr<Stream> stream_;
  const int left_out_;
  const milliseconds late_;
  int& waits_;
};

class Injector final : public ContextDecorator {
 public:
  Injector(int left_out, milliseconds late)
      : left_out_(left_out), late_(late) {}
  std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) override {
    return std::make_unique<FaultyStream>(std::move(stream), left_out_, late_,
                                          waits_);
  }
  std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) override {
    return allocator;
  }
  int waits() const { return waits_; }

 private:
  const int left_out_;
  const milliseconds late_;
  int waits_ = 0;
};

constexpr int kRoot = 1;

// Returns the collective of `from` and `to`, which have kCount elements per
// rank.
Collective Of(CollectiveKind kind, const Tensor& from, const Tensor& to) {
  Collective c{.kind = kind, .root = kRoot, .label = "injected"};
  const auto add = [](std::vector<SegmentList>& lists, const Tensor& x,
                      bool of_each_rank) {
    for (int r = 0; r < (of_each_rank ? kRanks : 1); ++r) {
      lists.push_back(
          {{.data = x.data<float>() + r * kCount, .run_elems = kCount}});
    }
  };
  add(c.send, from,
      kind == CollectiveKind::kReduceScatter ||
          kind == CollectiveKind::kAllToAll);
  add(c.recv, to,
      kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll);
  return c;
}

// Returns the result if rank r sends r + 1 everywhere except for zeros.
std::vector<float> Expected(CollectiveKind kind) {
  std::vector<float> expected(kRanks * kCount, 0);
  for (int r = 0; r < kRanks; ++r) {
    const bool of_each_rank =
        kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll;
    if (r > 0 && !of_each_rank) break;
    const auto value = static_cast<float>(of_each_rank        ? r + 1
                                          : IsReduction(kind) ? 1 + 2 + 3
                                                              : kRoot + 1);
    std::fill_n(expected.begin() + r * kCount, kCount, value);
  }
  return expected;
}

// Returns all ranks' results of a collective whose operands are written late
// and overwritten early. `hasty_rank` skips a wait. Only `late_rank` is late,
// because waits for another late rank would hide the skipped one.
std::vector<float> Results(CollectiveKind kind, int hasty_rank, int left_out,
                           int late_rank, milliseconds late,
                           int* waits = nullptr) {
  Injector hasty(left_out, kPunctual);
  Injector tardy(kNone, late);
  Injector punctual(kNone, kPunctual);
  std::vector<ContextDecorator*> injectors(kRanks, &punctual);
  injectors[static_cast<size_t>(hasty_rank)] = &hasty;
  injectors[static_cast<size_t>(late_rank)] = &tardy;
  std::vector<std::vector<float>> results(kRanks);
  const absl::Status status = RunLocal(
      kRanks,
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all,
                            world.Group("all", world.AllRanks(), "comm"));
        RankContext& context = world.context();
        Stream& comm = context.SideStream("comm");
        const Tensor from = Zeros({kRanks * kCount});
        const Tensor to = Zeros({kRanks * kCount});
        const Tensor mine = Zeros({kRanks * kCount});
        comm.Wait(context.compute_stream().Record());
        {
          const StreamScope scope(comm);
          FillInPlace(from, world.rank() + 1);
        }
        CH_RETURN_IF_ERROR(all->Issue(Of(kind, from, to), comm));
        {
          // Follows the collective in stream order.
          const StreamScope scope(comm);
          CopyInPlace(mine, to);
          FillInPlace(from, 1000);
          FillInPlace(to, 1000);
        }
        context.compute_stream().Wait(comm.Record());
        results[static_cast<size_t>(world.rank())] = mine.ToVector<float>();
        return absl::OkStatus();
      },
      {.backends = OnCuda(kRanks, 2), .test = {.decorators = injectors}});
  EXPECT_TRUE(status.ok()) << status;
  if (waits != nullptr) *waits = hasty.waits();
  std::vector<float> joined;
  for (const auto& result : results) {
    joined.insert(joined.end(), result.begin(), result.end());
  }
  return joined;
}

// Returns whether a skipped wait of `hasty` has an effect, for any late peer.
// On a busy machine `hasty` itself may wait for a core, so the peer is delayed
// further.
bool IsFound(CollectiveKind kind, int hasty, int left_out,
             const std::vector<float>& right) {
  for (milliseconds late = kLittle; late <= kMost; late *= 2) {
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != hasty &&
          Results(kind, hasty, left_out, peer, late) != right) {
        return true;
      }
    }
  }
  return false;
}

class LocalOnCudaInjectedTest
    : public ::testing::TestWithParam<CollectiveKind> {};

TEST_P(LocalOnCudaInjectedTest, EachWaitThatMattersShows) {
  const CollectiveKind kind = GetParam();
  std::vector<float> right;
  for (int r = 0; r < kRanks; ++r) {
    const std::vector<float> expected = Expected(kind);
    right.insert(right.end(), expected.begin(), expected.end());
  }
  // The root of a broadcast waits for other ranks than the rest.
  for (const int hasty : {0, kRoot}) {
    if (hasty == kRoot && kind != CollectiveKind::kBroadcast) continue;
    int waits = 0;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == hasty) continue;
      ASSERT_EQ(Results(kind, hasty, kNone, peer, kLittle, &waits), right);
    }
    // The test's own wait, then one per peer before and after the collective.
    // Between a sum and the exchange of its parts there is another one.
    const int per_peer = kind == CollectiveKind::kAllReduce ? 3 : 2;
    EXPECT_EQ(waits, 1 + per_peer * (kRanks - 1));
    int found = 0;
    for (int wait = 1; wait < waits; ++wait) {
      found += IsFound(kind, hasty, wait, right) ? 1 : 0;
    }
    // In a broadcast a rank reads only from the root, and others read only the
    // root's data.
    const int matter = kind != CollectiveKind::kBroadcast ? waits - 1
                       : hasty == kRoot                   ? kRanks - 1
                                                          : 1;
    EXPECT_EQ(found, matter) << "of the waits of rank " << hasty;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LocalOnCudaInjectedTest,
    ::testing::Values(CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                      CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
                      CollectiveKind::kBroadcast),
    [](const auto& test) { return std::string(Name(test.param)); });

}  // namespace
}  // namespace crosshatch
