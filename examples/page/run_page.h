// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_
#define CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_

/// \file
/// RunPage: what train_lm's --report shows of a run, as one HTML file that
/// needs nothing else: no network, no script. While the run goes on the page
/// loads itself again; it keeps the points of its charts, from which the page
/// of a run that is resumed goes on.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/page/sharding_drawing.h"
#include "crosshatch/examples/page/step_series.h"
#include "crosshatch/examples/page/step_trace.h"

namespace crosshatch::examples {

class RunPage {
 public:
  enum class State : uint8_t { kRuns, kStopped, kEnded, kFailed };

  /// Whether a page can be written there, changing nothing.
  /// \error kInvalidArgument naming the file: its directory cannot be written
  ///     to, or something else than such a page is there.
  static absl::Status Check(const std::string& path);

  /// \param kept_steps keep what a page that is there shows of the steps up to
  ///     this one: a run that is resumed goes on after them.
  /// \error as Check
  static absl::StatusOr<RunPage> Open(const std::string& path,
                                      int64_t kept_steps);

  /// \param settings names and values of what the run was told.
  void Begin(ShardingDrawing shardings,
             std::vector<std::pair<std::string, std::string>> settings);
  void Add(const StepMetrics& metrics);
  void Set(TracedStep trace) { trace_ = std::move(trace); }

  std::string ToHtml(State state) const;
  /// Puts the page in place, whole or not at all.
  /// \error names the file.
  absl::Status Write(State state) const;

 private:
  explicit RunPage(std::string path) : path_(std::move(path)) {}

  std::string Tiles() const;
  std::string Curves() const;
  std::string Moved() const;

  const std::string path_;
  StepSeries series_;
  ShardingDrawing shardings_;
  std::vector<std::pair<std::string, std::string>> settings_;
  std::optional<StepMetrics> last_;
  TracedStep trace_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_
