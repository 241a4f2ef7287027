// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_
#define CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_

/// \file
/// RunPage: the page that train_lm's --report writes, a single HTML file
/// without scripts or network access. During the run the page reloads itself.
/// It contains the points of its charts, from which a resumed run continues it.

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

  /// Checks that a page can be written to `path`, without changing anything.
  /// \error kInvalidArgument naming the file if its directory is not writable,
  ///     or if the file is something other than such a page.
  static absl::Status Check(const std::string& path);

  /// Opens the page of a run at `path`.
  /// \param kept_steps a resumed run's last step: keeps the points of an
  ///     existing page of steps up to this one.
  /// \error as Check.
  static absl::StatusOr<RunPage> Open(const std::string& path,
                                      int64_t kept_steps);

  /// Sets the page's static content.
  /// \param settings names and values of the run's options.
  void Begin(ShardingDrawing shardings,
             std::vector<std::pair<std::string, std::string>> settings);
  void Add(const StepMetrics& metrics);
  void Set(TracedStep trace) { trace_ = std::move(trace); }

  std::string ToHtml(State state) const;
  /// Writes the page; the file is always complete.
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
