// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_METRICS_H_
#define CROSSHATCH_EXAMPLES_METRICS_H_

/// \file
/// What train_lm measures of a step, and the file it writes it to.

#include <cstdint>
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

/// Calls and bytes received, by mesh axis ("fsdp", or several joined by ",")
/// and collective ("all_gather").
using Traffic =
    std::map<std::string, std::map<std::string, CommunicatorStats::Count>>;

/// Of this rank, over all its communicators, since the run began.
Traffic TotalTraffic(const World& world);
/// Entries of `later` less those of `earlier`, without those that are zero.
Traffic Difference(const Traffic& later, const Traffic& earlier);

struct StepMetrics {
  int64_t step = 0;  ///< From 1.
  /// Unset in a dry run, which computes nothing.
  std::optional<double> loss;
  std::optional<double> grad_norm;
  double lr = 0;
  /// After the step, where the model was evaluated.
  std::optional<double> eval_loss;
  double step_ms = 0;
  double tokens_per_s = 0;  ///< Of the whole job.
  /// Of this rank, within the step.
  MemoryStats memory;
  int64_t copied_bytes = 0;
  Traffic traffic;
};

/// A JSON object on one line, without the line's end:
/// {"step":1,"loss":5.5,"grad_norm":1.2,"lr":0.002,"eval_loss":5.4 (where it
///  was evaluated),"tokens_per_s":1000.0,"step_ms":10.0,"rank":0,
/// "peak_bytes":{"parameter":N,...,"total":N},"copied_bytes":0,
///  "moved":{"fsdp":{"all_gather":{"calls":N,"bytes":N},...},...}}
std::string ToJson(const StepMetrics& metrics, int rank);

/// A file of such lines. Without a path it takes them and does nothing.
///
/// What the file held before is there until the first line comes, and then goes
/// but for the lines that are to be kept. A line that could not be written
/// whole is taken back, so that a reader finds whole lines at any time. After
/// an error no more are taken.
class MetricsFile {
 public:
  /// Whether the file can be written, and holds nothing but metrics, as far as
  /// its beginning tells, changing nothing. A pipe is not opened:
  /// its reader would see it end.
  /// \error kInvalidArgument naming it and what the system says
  static absl::Status Check(const std::string& path);

  /// \param kept_steps keep the lines that the file begins with as long as they
  ///     are of steps up to this one: a run that is resumed goes on after them.
  /// \error as Check
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

  /// \error kInternal, e.g. for a full disk, naming the file and the last step
  ///     that it has; the same from then on.
  absl::Status Write(const StepMetrics& metrics, int rank);

 private:
  explicit MetricsFile(std::string path) : path_(std::move(path)) {}

  absl::Status Append(const std::string& line);

  std::string path_;
  int fd_ = -1;
  bool is_begun_ = false;  ///< What is not kept has gone.
  int64_t lines_ = 0;
  int64_t bytes_ = 0;
  absl::Status status_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_METRICS_H_
