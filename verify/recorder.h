// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_RECORDER_H_
#define CROSSHATCH_VERIFY_RECORDER_H_

/// \file
/// RecordRank: runs one rank of a program as a dry run and returns its log.
///
/// The dry run has streams that log what is issued to them, memory with
/// addresses that nothing dereferences, kernels that log their operands
/// (recording_kernels.h) and groups whose other members do not exist.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/context_decorator.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/verify/rank_log.h"

namespace crosshatch::verify {

/// Writes the log of a rank.
/// \threadsafety the rank's thread only.
class Recorder final : public ContextDecorator {
 public:
  Recorder(int rank, int world_size);

  std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) override;
  std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) override;

  /// Logs a kernel on `stream`.
  /// \param name has static storage.
  LoggedEvent& Kernel(int stream, const char* name,
                      const std::vector<LoggedAccess>& accesses);
  void UnknownKernel(int stream);

  /// Returns the number of the group, which the first call adds.
  int Group(const GroupKey& key, int member);
  void Issue(int group, const Collective& collective, const Stream& stream);
  void Exchange(int group, const std::string& what);

  RankLog TakeLog() { return std::move(log_); }
  /// Returns whether a lease has not ended.
  bool has_leases() const { return live_leases_ > 0; }

 private:
  class RecordedStream;
  class RecordedAllocator;
  class Point;

  LoggedEvent& Add(LoggedEvent::Kind kind, int stream, int64_t id);
  int Text(const std::string& text);
  /// Returns the number of "name, gradient of op, in module" of what runs.
  int TextOfWork(const char* name);

  RankLog log_;
  std::map<std::string, int> texts_;
  std::map<std::tuple<const char*, const std::string*, const char*>, int>
      works_;
  std::vector<std::shared_ptr<const std::string>> modules_;  ///< Keeps keys.
  std::map<GroupKey, int> groups_;
  int64_t next_address_;
  int64_t live_leases_ = 0;
};

/// The context of kernels on a recorded stream.
struct RecordingContext : KernelContext {
  Recorder* recorder = nullptr;
  int stream = 0;
};

/// Runs `program` as rank `rank` of a job and returns what it issued.
/// \param backend its workspaces and devices are accounted; null: the CPU.
/// \error that of the program
absl::StatusOr<RankLog> RecordRank(
    absl::FunctionRef<absl::Status(World&)> program, int rank, int world_size,
    const DeviceBackend* backend = nullptr);

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_RECORDER_H_
