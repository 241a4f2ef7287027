// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_ASYNC_SAVE_H_
#define CROSSHATCH_CHECKPOINT_ASYNC_SAVE_H_

/// \file
/// Saving a checkpoint while training goes on.
///
///     AsyncCheckpointer saver(world);
///     for (...) {
///       ...
///       CH_RETURN_IF_ERROR(optimizer.Step());
///       if (step % 100 == 0) CH_RETURN_IF_ERROR(saver.Save(run, dir));
///     }
///     CH_RETURN_IF_ERROR(saver.Wait());
///
/// Save plans and returns; a thread of the rank copies what the rank writes to
/// memory of the host, beside the next forward and backward, and then writes
/// the copy, in what time training leaves it. The first op that would change
/// what is not copied yet, which is the optimizer's next step, copies what is
/// left (WriteGuard), and Wait and the destructor write what is. Another
/// thread, which does not trail training, ends the save. Neither takes part in
/// a collective, which could come between those of training: ranks tell the
/// first one by small files in the directory that they write to (SaveJob's
/// reports), and its thread puts the checkpoint in place as soon as all have.
/// So a checkpoint is there once it is written, not when the program next asks.

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
#include "crosshatch/checkpoint/patient_work.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/write_guard.h"

namespace crosshatch::checkpoint {

struct AsyncOptions {
  /// Bounds the time that the first rank's thread waits for the others' files
  /// after its own is written; then it gives the checkpoint up.
  absl::Duration timeout = absl::Minutes(30);
  /// As SaveCheckpointOptions::beside_if_refused, of every save.
  bool beside_if_refused = false;
  /// By which this rank writes. Outlives the saver.
  FileSystem* file_system = &FileSystem::Real();
};

/// Saves one checkpoint at a time. All ranks make one, and call the same in the
/// same order.
/// \threadsafety the rank's thread only.
class AsyncCheckpointer {
 public:
  /// \param world outlives this
  explicit AsyncCheckpointer(World& world, AsyncOptions options = {});
  /// Lets a save that is going on come to its end, unless the run has failed:
  /// then it is given up. Its error is lost; Wait has it.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  /// Waits for the save before, and begins one of `state` to `dir`, as
  /// SaveCheckpoint would save it now: what ops do to `state` afterwards does
  /// not show. A program that writes to its memory by an address (Tensor::data)
  /// calls WaitUntilCopied before. On a dry run all is planned and nothing
  /// written, `then` is not run, and no save is left to wait for.
  /// \param overwrite as SaveCheckpointOptions::overwrite
  /// \param then run on the first rank's writing thread once the checkpoint is
  ///     in place; its error is one of the save
  /// \error on every rank alike: that of the save before, and then none was
  ///     begun; what keeps this one from beginning
  absl::Status Save(const nn::StateDict& state, const std::string& dir,
                    bool overwrite = false,
                    std::function<absl::Status()> then = nullptr);
  absl::Status Save(nn::Stateful& stateful, const std::string& dir,
                    bool overwrite = false,
                    std::function<absl::Status()> then = nullptr);

  /// Waits until what this rank writes is copied. It communicates nothing, and
  /// where it failed Wait says so.
  void WaitUntilCopied();

  /// As Wait once all ranks have ended their parts of the save, well or not,
  /// and OK where one is still at it: called after every step it tells of an
  /// error then, however early one rank had it, and waits for no file. While a
  /// save goes on the ranks meet once.
  absl::Status Poll();

  /// Waits until no save is going on.
  /// \error as SaveCheckpoint: why the last one failed, on every rank alike
  absl::Status Wait();

  /// For how long the last Save has kept the rank's thread, so far: planning
  /// it, and the wait of the first op that wrote, in which what the rank had
  /// issued to its stream before comes to its end too. Not the wait for the
  /// save before, nor what the copy takes from other threads' cores.
  absl::Duration held_up() const { return held_up_; }

 private:
  absl::Status Begin(const absl::StatusOr<nn::StateDict>& state,
                     const std::string& dir, bool overwrite,
                     std::function<absl::Status()> then);
  /// A piece of the job, and where its copy lies.
  struct Copy {
    std::byte* to;
    /// Null where the device copies it.
    const void* from;
    size_t bytes;
  };
  /// Finds room for copies of the pieces of job_, and lets the device begin
  /// with those that the host cannot address, on a stream of their own.
  /// \returns one for each piece, in their order
  std::vector<Copy> BeginCopies();
  /// Makes work_ of the host's part of the copies and of writing them.
  void PlanWork(const std::vector<Copy>& copies);
  /// Waits for the device's part of them, unless the rank is poisoned.
  void AwaitDevice();
  /// On the writing thread: writes this rank's file, where that is much by
  /// another thread, which trails training.
  /// \returns as SaveJob::EndFile
  absl::StatusOr<std::string> WriteFile();
  /// All of what the writing thread does.
  void Write(const std::function<absl::Status()>& then);
  absl::Status Finish();
  /// Ends the first rank's wait for reports: with the ranks' hashes, or
  /// without.
  void Deliver(absl::StatusOr<std::vector<std::string>> hashes);
  void JoinWriter();

  World& world_;
  const AsyncOptions options_;
  /// What copies of this rank's pieces take; kept from save to save. Where the
  /// host cannot address the device's memory the block has it, which the
  /// device's kernels reach.
  std::unique_ptr<std::byte[]> staging_;
  Block staging_block_;
  size_t staging_bytes_ = 0;
  absl::Duration held_up_;

  /// \name Of the save that is going on
  /// @{
  std::unique_ptr<SaveJob> job_;
  /// The device has copied what it was to.
  std::shared_future<void> device_copied_;
  /// Copies, num_copies_ parts, then the beginning of the file, then what is
  /// written to it. Null where there is no thread for it.
  std::unique_ptr<PatientWork> work_;
  size_t num_copies_ = 0;
  bool trails_training_ = false;
  std::unique_ptr<WriteGuard> guard_;
  std::promise<absl::StatusOr<std::string>> written_;
  std::shared_future<absl::StatusOr<std::string>> until_written_;
  /// First rank only.
  std::promise<absl::Status> committed_;
  std::future<absl::Status> until_committed_;
  std::mutex mutex_;
  /// What the ranks' threads were told where they met, if they did before all
  /// reports were there; under mutex_.
  std::optional<absl::StatusOr<std::vector<std::string>>> delivered_;
  std::thread writer_;
  /// @}
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_ASYNC_SAVE_H_
