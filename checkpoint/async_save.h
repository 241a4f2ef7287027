// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_ASYNC_SAVE_H_
#define CROSSHATCH_CHECKPOINT_ASYNC_SAVE_H_

/// \file
/// AsyncCheckpointer: saves checkpoints in the background of training.
///
///     AsyncCheckpointer saver(world);
///     for (...) {
///       ...
///       CH_RETURN_IF_ERROR(optimizer.Step());
///       if (step % 100 == 0) CH_RETURN_IF_ERROR(saver.Save(run, dir));
///     }
///     CH_RETURN_IF_ERROR(saver.Wait());
///
/// Save plans and returns. A background thread copies the rank's elements to
/// host memory during the next forward and backward, and then writes the copy,
/// with the CPU time that training leaves. The first op that would change
/// elements that are not copied yet, usually in the optimizer's next step,
/// copies the rest (WriteGuard). Wait and the destructor write the rest.
///
/// Another thread, of normal priority, ends the save. Neither thread issues a
/// collective, which could interleave with those of training. Instead, ranks
/// report to the first rank by small files in the checkpoint's directory
/// (SaveJob's reports), and its thread commits the checkpoint when all have
/// reported. So the checkpoint appears once it is written, not at the next call
/// of the program.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/write_guard.h"

namespace crosshatch::checkpoint {

/// Work in parts, which run one after another on a background thread when the
/// CPU is idle. Another thread takes over parts that it needs at once, because
/// a thread of low priority might delay it for long.
/// \threadsafety All members may be called on any thread.
class BackgroundWork {
 public:
  /// \param size number of parts.
  /// \param part runs the part of a given number. Parts never run concurrently,
  ///     and none runs after an error. An exception reaches the thread that
  ///     runs the part, and is an error for the others.
  BackgroundWork(size_t size, std::function<absl::Status(size_t)> part);
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  size_t size() const { return size_; }

  /// Runs the parts that no other thread takes over. Returns when all are done.
  /// \error the first error of a part.
  absl::Status RunInBackground();

  /// Takes over the first `count` parts as far as they have not begun. Returns
  /// when they are done, without waiting for later parts.
  /// \error the first error of a part.
  absl::Status RunUntil(size_t count);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool is_over() const {
    return !is_running_ && (next_ == size_ || !status_.ok());
  }
  size_t num_done() const { return next_ - (is_running_ ? 1 : 0); }
  /// Runs the next part, and releases the lock meanwhile.
  void RunNext(Lock& lock);

  const size_t size_;
  const std::function<absl::Status(size_t)> part_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  bool is_running_ = false;
  /// RunUntil runs the parts before this one that have not begun.
  size_t taken_over_ = 0;
  absl::Status status_;
};

/// Options of AsyncCheckpointer.
struct AsyncOptions {
  /// How long each rank waits for its device's copies, and the first rank's
  /// thread for the others' reports after its own file is written. Then the
  /// checkpoint is abandoned.
  absl::Duration timeout = absl::Minutes(30);
  /// SaveCheckpointOptions::use_fallback_directory of every save.
  bool use_fallback_directory = false;
  /// SaveCheckpointOptions::union_of_ranks of every save.
  bool union_of_ranks = false;
  /// File system calls of this rank. Must outlive the saver.
  FileSystem* file_system = &FileSystem::Real();
};

/// Saves one checkpoint at a time. All ranks create one, and must make the same
/// calls in the same order.
/// \threadsafety the rank's thread only.
class AsyncCheckpointer {
 public:
  /// \param world must outlive this object.
  explicit AsyncCheckpointer(World& world, AsyncOptions options = {});
  /// Completes a running save, or abandons it if the run has failed. Its error
  /// is lost; call Wait to get it.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  /// Waits for the previous save and begins a save of `state` to `dir`, with
  /// the values that SaveCheckpoint would save now: later ops on `state` have
  /// no effect. A program that writes to its memory by address (Tensor::data)
  /// must call WaitUntilCopied first. In a dry run, plans the save, writes
  /// nothing and does not call `then`.
  /// \param overwrite as SaveCheckpointOptions::overwrite.
  /// \param then called on the first rank's writing thread once the checkpoint
  ///     is committed; its error is the save's.
  /// \error The same on every rank: the error of the previous save, in which
  ///     case no save begins; or what prevents this save from beginning.
  absl::Status Save(const nn::StateDict& state, const std::string& dir,
                    bool overwrite = false,
                    std::function<absl::Status()> then = nullptr);
  absl::Status Save(nn::Stateful& stateful, const std::string& dir,
                    bool overwrite = false,
                    std::function<absl::Status()> then = nullptr);

  /// Waits until the elements of this rank are copied. Does not communicate;
  /// Wait returns its errors.
  void WaitUntilCopied();

  /// Returns OK without waiting if a rank is still writing its part. Otherwise
  /// does what Wait does. Call it after every step to get errors early. While a
  /// save is running, each call is one exchange between the ranks.
  absl::Status Poll();

  /// Waits until no save is running.
  /// \error As SaveCheckpoint: the error of the last save, the same on every
  ///     rank.
  absl::Status Wait();

  /// Returns how long the last Save has blocked the rank's thread so far. This
  /// includes planning and the wait of the first op that wrote to the state,
  /// with the work that was in the stream before it. It excludes the wait for
  /// the previous save and the CPU time of the copy.
  absl::Duration blocked_duration() const { return blocked_duration_; }

 private:
  absl::Status Begin(const absl::StatusOr<nn::StateDict>& state,
                     const std::string& dir, bool overwrite,
                     std::function<absl::Status()> then);
  /// A piece of the job, and the destination of its copy.
  struct Copy {
    std::byte* to;
    /// Null if the device copies it.
    const void* from;
    size_t bytes;
  };
  /// Allocates memory for copies of job_'s pieces. Starts the device's copies,
  /// of pieces that the host cannot address, on a stream of their own.
  /// \returns one copy per piece, in their order.
  std::vector<Copy> BeginCopies();
  /// Creates work_: the host's copies, then the writes of all copies.
  void PlanWork(const std::vector<Copy>& copies);
  /// Waits for the device's copies, unless the rank is poisoned, and for
  /// AsyncOptions::timeout at most. The program ends if the device has failed.
  void AwaitDevice();
  /// On the writing thread: writes this rank's file, on a low-priority thread
  /// if it is large.
  /// \returns as SaveJob::EndFile.
  absl::StatusOr<std::string> WriteFile();
  /// The body of the writing thread.
  void Write(const std::function<absl::Status()>& then);
  absl::Status Finish();
  void JoinWriter();

  World& world_;
  const AsyncOptions options_;
  /// Memory for the copies, kept from save to save. It is in the block if the
  /// host cannot address device memory, because device kernels can address the
  /// block.
  std::unique_ptr<std::byte[]> staging_;
  Block staging_block_;
  size_t staging_bytes_ = 0;
  absl::Duration blocked_duration_;

  /// \name State of the running save
  /// @{
  std::unique_ptr<SaveJob> job_;
  /// Ready when the device has copied its pieces.
  Event device_copied_;
  std::chrono::steady_clock::time_point device_deadline_;
  /// Whether AwaitDevice has given up, after which the state may change. No
  /// save begins until the device has made the copies.
  std::atomic<bool> device_is_late_ = false;
  /// Parts: num_copies_ copies, the beginning of the file, then the writes. If
  /// the writing thread did not start: the report of that.
  std::unique_ptr<BackgroundWork> work_;
  size_t num_copies_ = 0;
  bool runs_at_idle_priority_ = false;
  std::unique_ptr<WriteGuard> guard_;
  std::promise<absl::StatusOr<std::string>> written_;
  std::shared_future<absl::StatusOr<std::string>> until_written_;
  /// First rank only.
  std::promise<absl::Status> committed_;
  std::future<absl::Status> until_committed_;
  std::mutex mutex_;
  /// The result of the ranks' exchange in Finish. If it comes before the last
  /// report, it ends the first rank's wait for reports. Guarded by mutex_.
  std::optional<absl::StatusOr<std::vector<std::string>>> delivered_;
  std::thread writer_;
  /// @}
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_ASYNC_SAVE_H_
