// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_REPORT_H_
#define CROSSHATCH_EXAMPLES_REPORT_H_

/// \file
/// Report: what train_lm prints: mesh and shardings, progress, summary.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::examples {

/// Parameters of a model that differ only in the number of their block.
struct ParameterKind {
  std::string name;    ///< "layers.*.mlp.up_proj.weight"
  std::string layout;  ///< "[S(0),R]"; "plain" if not distributed.
  Shape sizes;
  int count = 0;
  const nn::Parameter* first = nullptr;
};

/// Returns the kinds in the order of the model's parameters.
std::vector<ParameterKind> ParameterKinds(nn::Module& model);

/// Prints for the reporting rank; silent on all others.
class Report {
 public:
  Report(bool reports, int64_t steps) : reports_(reports), steps_(steps) {}

  /// Prints the mesh and a line for each kind of parameters.
  void Start(const DeviceMesh& mesh, nn::Module& model);
  /// Sets that the run continues after step `step`.
  void Resume(int64_t step) { before_ = step; }
  /// Prints a line about something that the user may not expect.
  void Note(const std::string& text);
  /// Prints FSDP's groups, for dry runs.
  void Plan(const std::string& plan);
  /// Prints the first and last step of the run, steps with an evaluation, and
  /// otherwise one step per second.
  void Step(const StepMetrics& metrics);
  /// Counts a saved checkpoint.
  /// \param blocked how long the save blocked the run.
  void Saved(absl::Duration blocked);
  /// Prints a line to stderr.
  void Warn(const std::string& text);
  /// Prints tokens drawn from the model.
  void Sample(const std::string& text);
  /// Prints the traffic of the last step, the total time and that of
  /// checkpoints, if there was a step. Prints where the model was saved, if it
  /// was.
  void Finish(const std::string& save_dir);

 private:
  void PrintTraffic() const;
  void PrintSaves() const;

  const bool reports_;
  const int64_t steps_;
  int64_t before_ = 0;  ///< Of earlier runs.
  absl::Time begin_;
  absl::Time last_line_;
  std::optional<double> first_loss_;
  std::optional<StepMetrics> last_;
  int saves_ = 0;
  absl::Duration all_saves_;
  absl::Duration longest_save_;
};

/// Formats e.g. "1.5 MiB".
std::string FormatBytes(int64_t bytes);
/// Formats e.g. "1,234,567".
std::string FormatCount(int64_t count);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_REPORT_H_
