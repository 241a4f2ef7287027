// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_OPTIONS_H_
#define CROSSHATCH_EXAMPLES_TRAIN_OPTIONS_H_

/// \file
/// The options of train_lm, as values; the flags they come from are defined in
/// train_options.cc.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/launch/run_options.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/nn/optim/schedule.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::examples {

/// Of the text that is trained on, what --sample goes on from without --prompt.
inline constexpr int64_t kDefaultPromptTokens = 16;

struct TrainOptions {
  /// As given, completed with an fsdp axis of size 1 if it has none.
  std::vector<MeshAxis> mesh;
  /// A file with the plan of the tp axis; empty: the plan for Llama.
  /// kPrintPlan: that plan is to be printed, and nothing else is asked for.
  std::string plan;
  /// What the file holds.
  std::string plan_text;
  /// Of the backend, the ranks and the times.
  RunOptions run;

  std::vector<std::string> text;  ///< Files; or
  std::string tokens;             ///< one file of integers.
  int token_bits = 0;             ///< Of `tokens`; 0: by the file's header.
  /// The token that ends a document; unset: documents are not told apart.
  std::optional<int32_t> eos;
  bool eos_of_model = false;  ///< It is to be that of model_dir.
  std::string model_dir;      ///< Empty: a new model of `config`.
  nn::LlamaConfig config;

  int64_t global_batch = 0;
  /// Micro-batches that a step's rows are split into.
  int64_t accumulate = 1;
  int64_t seq_len = 0;
  int64_t steps = 0;
  double lr = 0;  ///< The peak of the schedule.
  nn::Schedule::Shape schedule = nn::Schedule::Shape::kConstant;
  int64_t warmup = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  /// Leaves decay off what is no matrix, and off the embedding.
  bool decay_matrices_only = false;
  double clip_norm = 0;  ///< 0: the norm is reported, nothing is clipped.
  uint64_t seed = 0;
  bool seed_is_given = false;  ///< Else a run that goes on has its own.
  DType dtype = kFloat32;
  bool recompute = false;  ///< Blocks run again in backward.
  bool offload = false;    ///< Shards and moments in host memory.

  std::vector<std::string> eval_text;  ///< Empty: nothing is evaluated.
  int64_t eval_every = 0;              ///< Steps; 0: only after the last one.

  std::string checkpoints;  ///< A directory of them; empty: none are written.
  int64_t save_every = 0;   ///< Steps; 0: only where the run ends.
  int64_t keep = 0;         ///< The newest so many; 0: all.
  bool save_async = false;
  bool resume = false;
  std::optional<int64_t> resume_step;  ///< Unset: the newest.
  /// What may differ from the run that is resumed: "data", "dtype".
  std::vector<std::string> may_change;

  int64_t sample = 0;  ///< Tokens to draw at the end.
  std::string prompt;  ///< What they follow; empty: the first training tokens.
  double temperature = 1;
  int64_t top_k = 0;

  std::string metrics;
  std::string report;        ///< An HTML file; empty: none.
  int64_t report_every = 0;  ///< Steps; 0: after the second and the last one.
  std::string save_dir;
  std::optional<DType> save_dtype;  ///< Unset: that of the weights.
  bool overwrite = false;
  bool verbose = false;

  int world_size() const;
  /// Size of an axis; 1 for one that the mesh lacks.
  int AxisSize(absl::string_view name) const;
  nn::Schedule LearningRates() const {
    return {.shape = schedule, .peak = lr, .warmup = warmup, .steps = steps};
  }
};

inline constexpr char kPrintPlan[] = "print";
/// Of the activations of a model: rows, tokens, heads, features of a head.
inline constexpr int kMostDims = 4;

/// Parses the command line. `--help` prints the flags and ends the process with
/// status 0.
/// \error kInvalidArgument naming the flag and what would be right.
absl::StatusOr<TrainOptions> ParseTrainOptions(int argc, char** argv);

/// Names and values of what matters of a run, to be shown.
std::vector<std::pair<std::string, std::string>> Settings(
    const TrainOptions& options);

/// "fsdp:2,tp:2" as axes.
/// \error kInvalidArgument for an unknown or repeated axis or a bad size.
absl::StatusOr<std::vector<MeshAxis>> ParseMesh(const std::string& text);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_OPTIONS_H_
