// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_TRAIN_OPTIONS_H_
#define CROSSHATCH_EXAMPLES_TRAIN_OPTIONS_H_

/// \file
/// TrainOptions: the options of train_lm as values. train_options.cc defines
/// the flags.

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
#include "crosshatch/tensor/ops/float8.h"
#include "crosshatch/tensor/step_graph.h"

namespace crosshatch::examples {

/// Number of training tokens that --sample continues without --prompt.
inline constexpr int64_t kDefaultPromptTokens = 16;

struct TrainOptions {
  /// As given, with an fsdp axis of size 1 if there was none.
  std::vector<MeshAxis> mesh;
  /// A file with the plan of the tp axis; empty: the plan for Llama.
  /// kPrintPlan: print that plan and do nothing else.
  std::string plan;
  /// The content of the file.
  std::string plan_text;
  /// Engine, ranks and timeouts.
  RunOptions run;

  std::vector<std::string> text;  ///< Files; or
  std::string tokens;             ///< one file of integers.
  int token_bits = 0;             ///< Of `tokens`; 0: by the file's header.
  /// The token that ends a document; unset: documents are not separated.
  std::optional<int32_t> eos;
  bool eos_of_model = false;  ///< Use that of model_dir.
  std::string model_dir;      ///< Empty: a new model of `config`.
  nn::LlamaConfig config;

  int64_t global_batch = 0;
  /// Number of micro-batches per step.
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
  /// Excludes the embedding and all parameters that are not matrices from
  /// decay.
  bool decay_matrices_only = false;
  double clip_norm = 0;  ///< 0: the norm is only reported.
  uint64_t seed = 0;
  bool seed_is_given = false;  ///< If not, a resumed run uses its own.
  DType dtype = kFloat32;
  std::optional<Float8Recipe> float8;  ///< Unset: no float8.
  bool recompute = false;              ///< Recompute blocks in backward.
  bool offload = false;                ///< Shards and moments in host memory.
  StepGraphOptions::Mode cuda_graphs = StepGraphOptions::Mode::kOff;

  std::vector<std::string> eval_text;  ///< Empty: no evaluation.
  int64_t eval_every = 0;              ///< Steps; 0: only after the last one.

  std::string checkpoints;  ///< Their directory; empty: none are written.
  int64_t save_every = 0;   ///< Steps; 0: only at the end of the run.
  int64_t keep = 0;         ///< The newest `keep` stay; 0: all.
  bool save_async = false;
  bool resume = false;
  std::optional<int64_t> resume_step;  ///< Unset: the newest.
  /// What may differ from the resumed run: "data", "dtype".
  std::vector<std::string> may_change;

  int64_t sample = 0;  ///< Tokens to draw at the end.
  std::string prompt;  ///< Empty: the first training tokens.
  double temperature = 1;
  int64_t top_k = 0;

  /// Where to write the trace of the verified step; empty: train.
  std::string verify;

  std::string metrics;
  std::string report;        ///< An HTML file; empty: none.
  int64_t report_every = 0;  ///< Steps; 0: after the second and the last one.
  std::string save_dir;
  std::optional<DType> save_dtype;  ///< Unset: the dtype of the weights.
  bool overwrite = false;
  bool verbose = false;

  int world_size() const;
  /// Returns the size of an axis; 1 if the mesh lacks it.
  int AxisSize(absl::string_view name) const;
  nn::Schedule LearningRates() const {
    return {.shape = schedule, .peak = lr, .warmup = warmup, .steps = steps};
  }
};

inline constexpr char kPrintPlan[] = "print";
/// Ndim of the largest activations: rows, tokens, heads, head features.
inline constexpr int kMaxDims = 4;

/// Returns the name of a recipe of --float8, or "none".
const char* NameOf(std::optional<Float8Recipe> recipe);
/// Returns whether steps are replayed, if they can be: --cuda_graphs is not
/// off, and nothing prevents it for the whole run.
bool ReplaysSteps(const TrainOptions& options);

/// Parses the command line, by ParseFlags (launch/launch_flags.h).
/// \error kInvalidArgument naming the flag and a correct value.
absl::StatusOr<TrainOptions> ParseTrainOptions(int argc, char** argv);

/// Returns names and values of the most important options, for display.
std::vector<std::pair<std::string, std::string>> Settings(
    const TrainOptions& options);

/// Parses "fsdp:2,tp:2".
/// \error kInvalidArgument for an unknown or repeated axis or a bad size.
absl::StatusOr<std::vector<MeshAxis>> ParseMesh(const std::string& text);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_TRAIN_OPTIONS_H_
