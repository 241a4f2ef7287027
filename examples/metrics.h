// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_METRICS_H_
#define CROSSHATCH_EXAMPLES_METRICS_H_

/// \file
/// StepMetrics: the measurements of a train_lm step, and MetricsFile: the file
/// that they are written to. ResolvedPath: where an output file is written.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/allocator.h"

namespace crosshatch::examples {

/// Calls and received bytes by mesh axis ("fsdp", or several joined by ",") and
/// collective ("all_gather").
using Traffic =
    std::map<std::string, std::map<std::string, CommunicatorStats::Count>>;

/// Returns this rank's traffic over all communicators since the start of the
/// run.
Traffic TotalTraffic(const World& world);
/// Returns `later` minus `earlier`, without zero entries.
Traffic Difference(const Traffic& later, const Traffic& earlier);

/// Measurements of one step.
struct StepMetrics {
  int64_t step = 0;  ///< From 1.
  /// Unset in a dry run, which computes nothing.
  std::optional<double> loss;
  std::optional<double> grad_norm;
  double lr = 0;
  /// The evaluation after the step, if there was one.
  std::optional<double> eval_loss;
  double step_ms = 0;
  double tokens_per_s = 0;  ///< Of the whole job.
  /// This rank's, within the step.
  MemoryStats memory;
  int64_t copied_bytes = 0;
  Traffic traffic;
};

/// Returns a JSON object on one line, without a line end:
/// {"step":1,"loss":5.5,"grad_norm":1.2,"lr":0.002,"eval_loss":5.4 (if
///  evaluated),"tokens_per_s":1000.0,"step_ms":10.0,"rank":0,
/// "peak_bytes":{"parameter":N,...,"total":N},"copied_bytes":0,
///  "moved":{"fsdp":{"all_gather":{"calls":N,"bytes":N},...},...}}
std::string ToJson(const StepMetrics& metrics, int rank);

/// A file of such lines. Without a path, Write does nothing.
///
/// The previous content stays until the first line is written and is then
/// truncated to the lines to keep. A line that could not be written completely
/// is removed, so that readers always find complete lines. After an error no
/// more lines are written.
class MetricsFile {
 public:
  /// Checks that the file can be written and, by its beginning, contains
  /// metrics or nothing. Changes nothing. Does not open a pipe, because its
  /// reader would see it end.
  /// \error kInvalidArgument naming the file and the system's error.
  static absl::Status Check(const std::string& path);

  /// Opens the file.
  /// \param kept_steps a resumed run's last step: keeps the lines at the
  ///     beginning of the file that are of steps up to this one.
  /// \error as Check.
  static absl::StatusOr<MetricsFile> Open(const std::string& path,
                                          int64_t kept_steps = 0);
  MetricsFile(MetricsFile&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        is_begun_(other.is_begun_),
        lines_(other.lines_),
        bytes_(other.bytes_),
        status_(std::move(other.status_)) {}
  MetricsFile& operator=(MetricsFile&&) = delete;
  ~MetricsFile();

  /// Appends a line.
  /// \error kInternal, e.g. for a full disk, naming the file and its last step;
  ///     the same for all later calls.
  absl::Status Write(const StepMetrics& metrics, int rank);

 private:
  explicit MetricsFile(std::string path) : path_(std::move(path)) {}

  absl::Status Append(const std::string& line);

  std::string path_;
  int fd_ = -1;
  bool is_begun_ = false;  ///< The truncation is done.
  int64_t lines_ = 0;
  int64_t bytes_ = 0;
  absl::Status status_;
};

/// Returns the file that opening `path` for writing would use: resolves links
/// as far as they exist, and dangling links to their target.
std::filesystem::path ResolvedPath(const std::string& path);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_METRICS_H_
