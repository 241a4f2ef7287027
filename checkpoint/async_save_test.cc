// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/async_save.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/process_scopes_testutil.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

/// A number of float elements that no other allocation of a save has.
constexpr int64_t kStaged = 12'347;

/// Called when this thread allocates memory for kStaged elements, once.
thread_local const std::function<void()>* when_it_stages = nullptr;

}  // namespace

void* operator new[](size_t bytes) {
  if (when_it_stages != nullptr && bytes == kStaged * sizeof(float)) {
    (*std::exchange(when_it_stages, nullptr))();
  }
  void* const block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }

namespace crosshatch::checkpoint {
namespace {

// Creates Abseil's table of system errors before threads exist, because
// ThreadSanitizer cannot see its synchronization.
const absl::Status kErrorTable = absl::ErrnoToStatus(EIO, "");

namespace fs = std::filesystem;

using ::testing::HasSubstr;

/// A disk that writes nothing until a rank's thread opens it.
class GatedFileSystem final : public FileSystem {
 public:
  int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
    if (call.name != absl::string_view("CreateFile")) return make();
    std::unique_lock<std::mutex> lock(mutex_);
    if (!is_open_ && ErrorContext::Innermost() != nullptr) {
      // It would wait for itself.
      ADD_FAILURE() << ErrorContext::DescribeCurrent() << " waits for the disk";
      return EIO;
    }
    opened_.wait(lock, [this] { return is_open_; });
    return error_ != 0 ? error_ : make();
  }

  /// \param error the error of all files from now on; 0: none.
  void Open(int error = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    error_ = error;
    opened_.notify_all();
  }

  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
  int error_ = 0;
};

/// Returns three tensors. If there are three ranks, each writes one.
nn::StateDict StateOf(float value) {
  nn::StateDict state;
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(state.Add(name, Full({5, 7}, value)).ok());
  }
  EXPECT_TRUE(state.Add("value", static_cast<double>(value)).ok());
  return state;
}

/// Returns tensors of which each of two ranks writes one, with kStaged
/// elements.
nn::StateDict StagedState() {
  nn::StateDict state;
  for (const char* name : {"a", "b"}) {
    EXPECT_TRUE(state.Add(name, Full({kStaged}, 1)).ok());
  }
  return state;
}

/// Checks that `dir` contains StateOf(value).
absl::Status ExpectHolds(World& world, const std::string& dir, float value) {
  nn::StateDict state = StateOf(0);
  CH_RETURN_IF_ERROR(LoadCheckpoint(world, state, dir));
  CH_EXPECT_EQ(*state.Get<double>("value"), value);
  CH_EXPECT_EQ(state.Get<Tensor>("b")->ToVector<float>(),
               std::vector<float>(35, value));
  return absl::OkStatus();
}

TEST(AsyncSaveTest, SavesTheValuesAtItsBegin) {
  const std::string dir = FreshDir("async_began");
  GatedFileSystem files;
  RunRanks(3, [&](World& world) -> absl::Status {
    AsyncCheckpointer saver(world, {.file_system = &files});
    nn::StateDict state = StateOf(1);
    CH_RETURN_IF_ERROR(saver.Save(state, dir));
    CH_EXPECT_FALSE(fs::exists(dir));
    // The program changes the memory by address.
    saver.WaitUntilCopied();
    for (const char* name : {"a", "b", "c"}) {
      float* data = state.Get<Tensor>(name)->data<float>();
      std::fill(data, data + 35, 2.0f);
    }
    CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all,
                        AllRanks(world));
    CH_RETURN_IF_ERROR(all->Exchange("", "before the disk opens").status());
    files.Open();
    CH_RETURN_IF_ERROR(saver.Wait());
    CH_RETURN_IF_ERROR(ExpectHolds(world, dir, 1));
    // No reports or other files are left.
    CH_EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 4);
    return absl::OkStatus();
  });
}

// Copying this many rows takes far longer than an op takes to start.
#ifdef __SANITIZE_THREAD__  // A copy is slower.
constexpr int64_t kRows = int64_t{2} << 20;
#else
constexpr int64_t kRows = int64_t{4} << 20;
#endif

TEST(AsyncSaveTest, AnOpThatWritesWaitsForTheCopy) {
  const std::string dir = FreshDir("async_ops");
  OnMesh({{"fsdp", 3}}, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    CH_ASSIGN_OR_RETURN(const Layout layout,
                        Layout::FromPlacements(mesh.layout(), 1, {Shard(0)}));
    const Tensor local = Full({kRows}, 1);
    const NoGrad no_grad;
    nn::StateDict state;
    CH_RETURN_IF_ERROR(
        state.Add("w", MakeDTensor(local, mesh, layout, {3 * kRows})));
    AsyncCheckpointer saver(world);
    // The second copy is faster, because the memory was touched before.
    for (int i = 0; i < 2; ++i) {
      FillInPlace(local, 1);
      CH_RETURN_IF_ERROR(saver.Save(state, dir, /*overwrite=*/true));
      const absl::Duration call = saver.blocked_duration();
      FillInPlace(local, 2);
      CH_EXPECT_GT(call, absl::ZeroDuration());
      CH_EXPECT_GT(saver.blocked_duration(), call);
      CH_RETURN_IF_ERROR(saver.Wait());
      CH_RETURN_IF_ERROR(LoadCheckpoint(world, state, dir));
      const std::vector<float> saved = local.ToVector<float>();
      CH_EXPECT_EQ(std::count(saved.begin(), saved.end(), 1.0f), kRows);
    }
    return absl::OkStatus();
  });
}

TEST(AsyncSaveTest, TheNextSaveWaitsForTheOneBefore) {
  const std::string root = FreshDir("async_next");
  RunRanks(3, [&](World& world) -> absl::Status {
    AsyncCheckpointer saver(world);
    for (int i = 1; i <= 3; ++i) {
      CH_RETURN_IF_ERROR(saver.Save(StateOf(static_cast<float>(i)),
                                    root + "/" + std::to_string(i)));
      // The previous save is complete before the next one begins.
      CH_EXPECT_TRUE(i == 1 || fs::exists(root + "/" + std::to_string(i - 1)));
    }
    CH_RETURN_IF_ERROR(saver.Wait());
    CH_RETURN_IF_ERROR(saver.Wait());
    for (int i = 1; i <= 3; ++i) {
      CH_RETURN_IF_ERROR(ExpectHolds(world, root + "/" + std::to_string(i),
                                     static_cast<float>(i)));
    }
    return absl::OkStatus();
  });
}

TEST(AsyncSaveTest, CommitsWithoutPollOrWait) {
  const std::string dir = FreshDir("async_there");
  RunRanks(3, [&](World& world) -> absl::Status {
    AsyncCheckpointer saver(world);
    CH_RETURN_IF_ERROR(saver.Save(StateOf(1), dir));
    // No rank calls the saver.
    while (!fs::exists(dir)) std::this_thread::yield();
    return saver.Wait();
  });
}

TEST(AsyncSaveTest, ErrorsOfAnyRankComeWithTheNextSaveOrWait) {
  const std::string dir = FreshDir("async_errors");
  for (const bool by_save : {false, true}) {
    GatedFileSystem full;
    full.Open(ENOSPC);
    RunRanks(3, [&](World& world) -> absl::Status {
      AsyncOptions options;
      // Rank 2 cannot write its report either.
      if (world.rank() == 2) options.file_system = &full;
      AsyncCheckpointer saver(world, options);
      CH_RETURN_IF_ERROR(saver.Save(StateOf(1), dir));
      const absl::Status status =
          by_save ? saver.Save(StateOf(2), dir) : saver.Wait();
      CH_EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      CH_EXPECT_THAT(std::string(status.message()), HasSubstr("on rank 2: "));
      CH_EXPECT_THAT(std::string(status.message()), HasSubstr("create"));
      // The error is reported once.
      CH_RETURN_IF_ERROR(saver.Wait());
      return absl::OkStatus();
    });
    EXPECT_FALSE(fs::exists(dir));
    EXPECT_FALSE(fs::exists(dir + ".saving"));
  }
}

TEST(AsyncSaveTest, PollsReportAnErrorOnce) {
  const std::string dir = FreshDir("async_polled");
  const std::string other = FreshDir("async_polled_too");
  GatedFileSystem gated;
  RunRanks(3, [&](World& world) -> absl::Status {
    AsyncOptions options;
    if (world.rank() == 2) options.file_system = &gated;
    AsyncCheckpointer saver(world, options);
    CH_RETURN_IF_ERROR(saver.Poll());
    CH_RETURN_IF_ERROR(saver.Save(StateOf(1), dir));
    // The other ranks have finished, but do not wait for the last.
    for (int step = 0; step < 10; ++step) CH_RETURN_IF_ERROR(saver.Poll());
    if (world.rank() == 2) gated.Open(ENOSPC);
    absl::Status status;
    while (status.ok()) status = saver.Poll();
    CH_EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    CH_EXPECT_THAT(std::string(status.message()), HasSubstr("on rank 2: "));
    CH_RETURN_IF_ERROR(saver.Poll());
    // Polls of a successful save return OK, before and after its end.
    if (world.rank() == 2) gated.Close();
    CH_RETURN_IF_ERROR(saver.Save(StateOf(2), other));
    CH_RETURN_IF_ERROR(saver.Poll());
    if (world.rank() == 2) gated.Open();
    for (int step = 0; step < 10; ++step) CH_RETURN_IF_ERROR(saver.Poll());
    CH_RETURN_IF_ERROR(saver.Wait());
    return ExpectHolds(world, other, 2);
  });
  EXPECT_FALSE(fs::exists(dir));
}

TEST(AsyncSaveTest, RunsThenOnceOnTheFirstRank) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  const std::string dir = FreshDir("async_then");
  std::vector<int> runs(3, 0);
  RunRanks(3, [&](World& world) -> absl::Status {
    AsyncCheckpointer saver(world);
    const auto then = [&runs, rank = world.rank(), dir] {
      ++runs[rank];
      return fs::exists(dir) ? absl::DataLossError("then")
                             : absl::InternalError("too early");
    };
    CH_RETURN_IF_ERROR(saver.Save(StateOf(1), dir, false, then));
    const absl::Status status = saver.Wait();
    CH_EXPECT_EQ(status, absl::DataLossError(
                             world.rank() == 0 ? "then" : "on rank 0: then"));
    return absl::OkStatus();
  });
  EXPECT_EQ(runs, (std::vector<int>{1, 0, 0}));
}

// Ranks cannot take over the end of a save, so they wait for it.
TEST(AsyncSaveTest, CompletesAtNormalPriority) {
  const std::string dir = FreshDir("async_end");
  RunRanks(2, [&](World& world) -> absl::Status {
    AsyncCheckpointer saver(world);
    const int own = sched_getscheduler(/*pid=*/0);
    int at_the_end = -1;
    // Large enough to be written by a low-priority thread.
    nn::StateDict state;
    for (const char* name : {"a", "b"}) {
      CH_RETURN_IF_ERROR(state.Add(name, Full({3, 1 << 20}, 1)));
    }
    CH_RETURN_IF_ERROR(saver.Save(state, dir, false, [&] {
      at_the_end = sched_getscheduler(/*pid=*/0);
      return absl::OkStatus();
    }));
    CH_RETURN_IF_ERROR(saver.Wait());
    CH_EXPECT_EQ(at_the_end, world.rank() == 0 ? own : -1);
    return absl::OkStatus();
  });
}

TEST(AsyncSaveTest, DoesNotWaitInAFailedRun) {
  const std::string dir = FreshDir("async_failed");
  GatedFileSystem gated;
  const absl::Status status =
      StatusOfRanks(3, [&](World& world) -> absl::Status {
        AsyncOptions options;
        if (world.rank() == 2) options.file_system = &gated;
        AsyncCheckpointer saver(world, options);
        CH_RETURN_IF_ERROR(saver.Save(StateOf(1), dir));
        if (world.rank() == 1) return absl::NotFoundError("elsewhere");
        // The first rank's thread waits for the third rank's, which continues
        // when the first rank has ended.
        while (world.context().status().ok()) std::this_thread::yield();
        if (world.rank() == 2) gated.Open(EIO);
        return absl::OkStatus();
      });
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_FALSE(fs::exists(dir));
}

TEST(AsyncSaveTest, WaitsNoLongerThanItMay) {
  const std::string dir = FreshDir("async_timeout");
  GatedFileSystem gated;
  RunRanks(2, [&](World& world) -> absl::Status {
    AsyncOptions options{.timeout = absl::Milliseconds(20)};
    if (world.rank() == 1) options.file_system = &gated;
    AsyncCheckpointer saver(world, options);
    CH_RETURN_IF_ERROR(saver.Save(StateOf(1), dir));
    if (world.rank() == 1) {
      // When the first rank has abandoned the save, no files are left.
      while (fs::exists(dir + ".saving")) std::this_thread::yield();
      gated.Open();
    }
    const absl::Status status = saver.Wait();
    CH_EXPECT_FALSE(status.ok());
    return absl::OkStatus();
  });
  EXPECT_FALSE(fs::exists(dir));
}

/// Holds the device's copies of a rank's saves. A save allocates host memory
/// for them after it has waited for all streams.
class HeldCopies final : public EventSink {
 public:
  explicit HeldCopies(World& world) : context_(world.context()) {
    context_.host_allocator().set_sink(this, /*of_host=*/true);
  }
  ~HeldCopies() override { context_.host_allocator().set_sink(nullptr); }

  void Write(const LogEvent& event) override {
    if (event.kind != EventKind::kAllocate || event.where == nullptr ||
        *event.where != "checkpoint") {
      return;
    }
    context_.SideStream("checkpoint")
        .LaunchHost([opened = opened_](KernelContext&) { opened.wait(); });
  }

  /// Lets all copies begin. Must be called once.
  void Open() { open_.set_value(); }

 private:
  RankContext& context_;
  std::promise<void> open_;
  const std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(AsyncSaveTest, MayWaitForever) {
  const std::string dir = FreshDir("async_forever");
  RunRanks(2, [&](World& world) -> absl::Status {
    HeldCopies copies(world);
    AsyncCheckpointer saver(world, {.timeout = absl::InfiniteDuration()});
    const absl::Status begun = saver.Save(StateOf(1), dir);
    absl::Status polled;
    // A deadline in the past would end the save by then.
    for (int i = 0; i < 100 && polled.ok(); ++i) polled = saver.Poll();
    copies.Open();
    CH_RETURN_IF_ERROR(begun);
    CH_RETURN_IF_ERROR(polled);
    CH_RETURN_IF_ERROR(saver.Wait());
    return ExpectHolds(world, dir, 1);
  });
}

TEST(AsyncSaveTest, NoSaveBeginsWhileTheDeviceCopiesForAnAbandonedOne) {
  const std::string dir = FreshDir("async_late");
  RunRanks(2, [&](World& world) -> absl::Status {
    if (world.device().is_cpu()) return absl::OkStatus();  // The host copies.
    HeldCopies copies(world);
    AsyncCheckpointer saver(world, {.timeout = absl::Milliseconds(20)});
    const absl::Status begun = saver.Save(StateOf(1), dir);
    const absl::Status first = saver.Wait();
    const absl::Status second = saver.Save(StateOf(1), dir);
    copies.Open();
    CH_RETURN_IF_ERROR(begun);
    EXPECT_TRUE(absl::IsDeadlineExceeded(first)) << first;
    EXPECT_TRUE(absl::IsDeadlineExceeded(second)) << second;
    EXPECT_THAT(second.message(), HasSubstr("the device still copies"));
    return absl::OkStatus();
  });
  EXPECT_FALSE(fs::exists(dir));
}

// A poisoned rank skips copies, so its memory does not have the state. Its
// thread does not wait for the disk.
TEST(AsyncSaveTest, DoesNotSaveCopiesOfAPoisonedRank) {
  CH_SKIP_ON(TestEngine::kMpi, "one rank waits for a variable of another");
  CH_SKIP_ON(Device::Kind::kCuda, "intercepts the host's allocations");
  const std::string dir = FreshDir("async_poisoned");
  GatedFileSystem gated;
  std::atomic<bool> first_is_done = false;
  const absl::Status status =
      StatusOfRanks(2, [&](World& world) -> absl::Status {
        const std::function<void()> poison = [&] {
          world.context().Poison(absl::CancelledError("a peer failed"));
        };
        {
          AsyncOptions options{.timeout = absl::Minutes(1)};
          if (world.rank() == 1) {
            options.file_system = &gated;
            when_it_stages = &poison;
          }
          AsyncCheckpointer saver(world, options);
          CH_RETURN_IF_ERROR(saver.Save(StagedState(), dir));
          if (world.rank() == 1) gated.Open();
        }
        if (world.rank() == 0) {
          first_is_done = true;
          return absl::OkStatus();
        }
        while (!first_is_done) std::this_thread::yield();
        return world.context().status();
      });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_FALSE(fs::exists(dir));
}

// Otherwise the first rank's thread would wait half an hour for the report. The
// rank's thread writes it, but not before the rank waits for the save.
TEST(AsyncSaveTest, AThreadThatDoesNotStartReports) {
  CH_SKIP_ON(TestEngine::kMpi, "limits the threads of one process");
  CH_SKIP_ON(Device::Kind::kCuda, "a device starts threads of its own");
  const auto begin = std::chrono::steady_clock::now();
  const std::string dir = FreshDir("async_no_thread");
  GatedFileSystem gated;
  std::atomic<bool> first_has_begun = false;
  const std::function<void()> wait_for_first = [&] {
    while (!first_has_begun) std::this_thread::yield();
  };
  RunRanks(2, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all,
                        AllRanks(world));
    std::optional<FewThreadsScope> few;
    if (world.rank() == 0) few.emplace(1);
    CH_RETURN_IF_ERROR(all->Exchange("", "few threads").status());
    {
      AsyncOptions options{.timeout = absl::Minutes(1)};
      if (world.rank() == 1) {
        options.file_system = &gated;
        when_it_stages = &wait_for_first;
      }
      AsyncCheckpointer saver(world, options);
      CH_RETURN_IF_ERROR(saver.Save(StagedState(), dir));
      // The first rank's thread is the one that starts.
      if (world.rank() == 0) first_has_begun = true;
      if (world.rank() == 1) gated.Open();
    }
    return all->Exchange("", "done").status();
  });
  EXPECT_FALSE(fs::exists(dir));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace crosshatch::checkpoint
