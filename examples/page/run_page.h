// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_
#define CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_

/// \file
/// RunPage: the page that train_lm's --report writes, a single HTML file
/// without network access. It is page.html with two JSON objects, which its
/// script draws: the points of the charts, from which a resumed run continues
/// the page, and the rest. During the run the page reloads itself.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/page/step_series.h"
#include "crosshatch/examples/page/step_trace.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/nn/module.h"

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

  /// Sets the page's static content: the parts of the parameters on the first
  /// 16 ranks of `mesh`, and the settings.
  /// \param settings names and values of the run's options.
  void Begin(nn::Module& model, const MeshLayout& mesh,
             const std::vector<std::pair<std::string, std::string>>& settings);
  void Add(const StepMetrics& metrics);
  void Set(TracedStep trace) { trace_ = std::move(trace); }

  std::string ToHtml(State state) const;
  /// Writes the page; the file is always complete.
  /// \error names the file.
  absl::Status Write(State state) const;

 private:
  explicit RunPage(std::string path) : path_(std::move(path)) {}

  /// Returns the object `run` of page.html's script.
  std::string DataJson(State state) const;

  const std::string path_;
  StepSeries series_;
  std::string static_json_ = "{}";  ///< Of Begin.
  std::optional<StepMetrics> last_;
  TracedStep trace_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_RUN_PAGE_H_
