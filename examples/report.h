// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_REPORT_H_
#define CROSSHATCH_EXAMPLES_REPORT_H_

/// \file
/// What train_lm prints: the mesh and the shardings, the progress, the summary.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::examples {

/// Prints for one rank; the others hold one that is silent.
class Report {
 public:
  Report(bool speaks, int64_t steps) : speaks_(speaks), steps_(steps) {}

  /// The mesh, and a line for each kind of parameter: blocks' parameters are of
  /// one kind where only the block's number differs.
  void Start(const DeviceMesh& mesh, nn::Module& model);
  /// The run goes on after step `step`.
  void Resume(int64_t step) { before_ = step; }
  /// A line about what the user may not expect.
  void Note(const std::string& text);
  /// FSDP's groups, for dry runs.
  void Plan(const std::string& plan);
  /// Prints the run's first step, the last, those after which the model was
  /// evaluated, and in between one a second.
  void Step(const StepMetrics& metrics);
  /// A checkpoint was saved, which took so much time of the run.
  void Saved(absl::Duration held_up);
  /// A line to stderr.
  void Warn(const std::string& text);
  /// What was drawn from the model.
  void Sample(const std::string& text);
  /// Totals of the last step's kind and the time in all, if there was a step,
  /// what checkpoints took of it, and where the model was saved, if it was.
  void Finish(const std::string& save_dir);

 private:
  void PrintTraffic() const;
  void PrintSaves() const;

  const bool speaks_;
  const int64_t steps_;
  int64_t before_ = 0;  ///< Steps of earlier runs.
  absl::Time begin_;
  absl::Time last_line_;
  std::optional<double> first_loss_;
  std::optional<StepMetrics> last_;
  int saves_ = 0;
  absl::Duration all_saves_;
  absl::Duration longest_save_;
};

/// "1.5 MiB".
std::string FormatBytes(int64_t bytes);
/// "1,234,567".
std::string FormatCount(int64_t count);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_REPORT_H_
