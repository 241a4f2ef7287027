// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/train_options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/given_flag.h"
#include "crosshatch/launch/launch_flags.h"
#include "crosshatch/mesh/parse_mesh_axes.h"

using GivenDouble = crosshatch::GivenFlag<double>;
using GivenInt = crosshatch::GivenFlag<int64_t>;
using GivenPath = crosshatch::GivenFlag<std::string>;
using GivenSeed = crosshatch::GivenFlag<uint64_t>;

ABSL_FLAG(std::string, mesh, "fsdp:1",
          "The mesh as AXIS:SIZE,... with the axes replicate, fsdp and tp in "
          "any order. Ranks along the last axis are neighbours. An axis' name "
          "determines its use.");
ABSL_FLAG(GivenPath, plan, {},
          "A file with the tensor-parallel plan of the tp axis: lines with a "
          "pattern of module names, a style and its options (tp/plan_text.h). "
          "\"print\" prints the default plan in this format.");
ABSL_FLAG(std::vector<std::string>, text, {},
          "Text files to train on; each byte is a token.");
ABSL_FLAG(GivenPath, tokens, {},
          "A file of tokens to train on, little-endian integers.");
ABSL_FLAG(int, token_bits, 0,
          "Bits of a token of --tokens, 16 or 32. 0: as in the file's header "
          "if it has one in llm.c's format, else 16.");
ABSL_FLAG(
    std::string, eos, "",
    "The token that ends a document: a number, or config for the eos_token_id "
    "of --model. If set, attention stays within documents, positions restart "
    "in each, and a document's first token has no loss.");
ABSL_FLAG(GivenPath, model, {},
          "A directory with a Llama model in Hugging Face's layout to start "
          "from. Default: a new model with the sizes below.");
ABSL_FLAG(GivenInt, dim, {128}, "Width of the residual stream.");
ABSL_FLAG(GivenInt, layers, {4}, "Number of blocks.");
ABSL_FLAG(GivenInt, heads, {4}, "Number of query heads.");
ABSL_FLAG(GivenInt, kv_heads, {0},
          "Number of key and value heads; 0: equal to --heads.");
ABSL_FLAG(GivenInt, ffn, {352}, "Inner width of the MLP.");
ABSL_FLAG(GivenInt, vocab, {256}, "Number of distinct tokens.");
ABSL_FLAG(int64_t, global_batch, 8, "Rows per step, over all ranks.");
ABSL_FLAG(int64_t, accumulate, 1,
          "Micro-batches per step. Their gradients are accumulated, which "
          "takes less memory.");
ABSL_FLAG(int64_t, seq_len, 128, "Tokens per row.");
ABSL_FLAG(int64_t, steps, 200, "Steps to train.");
ABSL_FLAG(double, lr, 2e-3, "Peak learning rate of the schedule.");
ABSL_FLAG(std::string, schedule, "constant",
          "Learning rate after the warmup: constant, or linear or cosine decay "
          "to nearly 0 at the last step.");
ABSL_FLAG(int64_t, warmup, 0,
          "Steps over which the learning rate rises to --lr.");
ABSL_FLAG(double, beta1, 0.9, "AdamW's decay rate of the first moment.");
ABSL_FLAG(double, beta2, 0.95, "AdamW's decay rate of the second moment.");
ABSL_FLAG(double, eps, 1e-8, "AdamW's epsilon.");
ABSL_FLAG(double, weight_decay, 0.1, "AdamW's decoupled weight decay.");
ABSL_FLAG(std::string, decay, "all",
          "Parameters that --weight_decay applies to: all, or matrices, which "
          "excludes norms, biases and the embedding.");
ABSL_FLAG(double, clip_norm, 1.0,
          "Maximum global L2 norm of the gradients; 0: no clipping.");
ABSL_FLAG(GivenSeed, seed, {0},
          "Seed of the initial weights and of --sample. A resumed run keeps "
          "its seed.");
ABSL_FLAG(std::string, dtype, "float32",
          "Element type of computations: float32 or bfloat16. Master weights "
          "stay float32.");
ABSL_FLAG(std::string, float8, "",
          "Float8 training: scaling of the products of the blocks' linear "
          "layers, tensorwise or rowwise. Default: no float8.");
ABSL_FLAG(
    bool, recompute, false,
    "Checkpoint activations: save only the inputs of each block and run its "
    "forward again in backward. Less memory, more time, the same bits.");
ABSL_FLAG(bool, offload, false,
          "Offload to the CPU: keep the shards of parameters, gradients and "
          "moments in host memory and update them there.");
ABSL_FLAG(std::string, cuda_graphs, "off",
          "Replay forward and backward of a step as a CUDA graph: on, or auto "
          "to run the steps that cannot be replayed, or off.");
ABSL_FLAG(std::vector<std::string>, eval_text, {},
          "Text files to evaluate the model on, after the last step and every "
          "--eval_every steps: the mean loss over their complete rows of "
          "--seq_len tokens.");
ABSL_FLAG(GivenInt, eval_every, {0},
          "Evaluation interval, in steps; 0: only after the last step.");
ABSL_FLAG(int64_t, sample, 0,
          "Tokens to generate and print at the end: as text with --text, as "
          "numbers with --tokens.");
ABSL_FLAG(
    GivenPath, prompt, {},
    "The text that --sample continues. Default: the first 16 training tokens.");
ABSL_FLAG(GivenDouble, temperature, {1.0},
          "Temperature of --sample; 0: always the most likely token.");
ABSL_FLAG(GivenInt, top_k, {0},
          "Number of most likely tokens that --sample draws from; 0: all.");
ABSL_FLAG(GivenPath, checkpoints, {},
          "A directory for checkpoints of the run: model, optimizer, step, "
          "data position and seed. Written every --save_every steps and when "
          "the run ends, also by SIGTERM or SIGINT (exit status 0 unless "
          "--stop_status is set).");
ABSL_FLAG(GivenInt, save_every, {0},
          "Checkpoint interval, in steps; 0: only when the run ends.");
ABSL_FLAG(GivenInt, keep, {0}, "Number of newest checkpoints to keep; 0: all.");
ABSL_FLAG(bool, save_async, false,
          "Write checkpoints in the background, during training.");
ABSL_FLAG(bool, resume, false,
          "Continue from the newest checkpoint in --checkpoints, which may be "
          "from another mesh. If there is none, start from the beginning.");
ABSL_FLAG(GivenInt, resume_step, {0},
          "Continue from the checkpoint of this step; later ones are renamed "
          "to step-N.aside. Set it for one start only.");
ABSL_FLAG(std::vector<std::string>, may_change, {},
          "Differences from the resumed run to allow, which --resume otherwise "
          "refuses: data, dtype.");
ABSL_FLAG(GivenPath, verify, {},
          "Verify two steps on the mesh instead of training: print the "
          "certificate or the counterexamples, and write them to this file as "
          "a trace for ui.perfetto.dev.");
ABSL_FLAG(GivenPath, metrics, {},
          "A file to write one JSON object per step to. If a write fails, "
          "training continues, and the exit status is 1.");
ABSL_FLAG(GivenPath, report, {},
          "An HTML report of the run, one self-contained page: losses, memory, "
          "traffic by axis, shardings, and a timeline with the times of a "
          "step. Exists from the second step on and is replaced atomically.");
ABSL_FLAG(GivenInt, report_every, {0},
          "Interval of --report, in steps; 0: only after the second and the "
          "last step.");
ABSL_FLAG(
    GivenPath, save, {},
    "A directory to save the trained model to, in Hugging Face's layout.");
ABSL_FLAG(std::string, save_dtype, "",
          "Element type of the weights that --save writes: float32 or "
          "bfloat16. Default: float32, as in training.");
ABSL_FLAG(bool, overwrite, false,
          "Allow --save to replace the model in a directory that is not empty; "
          "other files there are kept.");
ABSL_FLAG(bool, verbose, false,
          "Print every rank's interval of every parameter in a dry run.");

namespace crosshatch::examples {
namespace {

constexpr char kSource[] = "examples/train_options.cc";

absl::Status CheckAtLeast(const char* flag, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": must be at least ", least));
}

absl::Status CheckNotNegative(const char* flag, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": must be a number of at least 0"));
}

// Checks the value also as float32, in which it is used.
absl::Status CheckPositive(const char* flag, double value) {
  const auto used = static_cast<float>(value);
  if (used > 0 && std::isfinite(used)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, "=", value, ": must be a number above 0, in float32 too"));
}

// Returns the options that must be equal on all ranks.
std::vector<std::string> AgreedOptions(const TrainOptions& options) {
  const struct {
    const char* flag;
    bool is_given;
  } paths[] = {
      {"checkpoints", !options.checkpoints.empty()},
      {"eval_text", !options.eval_text.empty()},
      {"model", !options.model_dir.empty()},
      {"plan", !options.plan.empty()},
      {"save", !options.save_dir.empty()},
      {"text", !options.text.empty()},
      {"tokens", !options.tokens.empty()},
  };
  // Used on rank 0 only.
  std::set<std::string> apart = {"metrics", "report", "report_every",
                                 "verbose"};
  std::vector<std::string> agreed;
  // Files may have other paths on other hosts.
  for (const auto& path : paths) {
    apart.insert(path.flag);
    agreed.push_back(absl::StrCat(path.is_given ? "a --" : "no --", path.flag));
  }
  for (std::string& value : FlagValues(kSource, apart)) {
    agreed.push_back(std::move(value));
  }
  return agreed;
}

absl::Status CheckFraction(const char* flag, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": must be at least 0 and below 1"));
}

// An empty path usually comes from a script with an unset variable.
absl::StatusOr<std::string> PathOf(const char* flag, const GivenPath& path) {
  if (path.is_given && path.value.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "= is empty: name a file or directory"));
  }
  return path.value;
}

absl::StatusOr<DType> ParseDType(const char* flag, const std::string& name) {
  if (name == "float32") return kFloat32;
  if (name == "bfloat16") return kBFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", name, ": must be float32 or bfloat16"));
}

absl::StatusOr<StepGraphOptions::Mode> ParseCudaGraphs(
    const std::string& name) {
  if (name == "off") return StepGraphOptions::Mode::kOff;
  if (name == "auto") return StepGraphOptions::Mode::kAuto;
  if (name == "on") return StepGraphOptions::Mode::kOn;
  return absl::InvalidArgumentError(
      absl::StrCat("--cuda_graphs=", name, ": must be on, auto or off"));
}

// Returns what prevents replays of the whole run; empty if nothing does.
std::string ReasonAgainstGraphs(const TrainOptions& options) {
  if (options.run.device != Device::Kind::kCuda) {
    return "the CPU has no graphs: compute with --device=cuda";
  }
  if (options.run.engine == EngineKind::kFake) {
    return "a dry run issues no work: omit it with --engine=fake";
  }
  if (options.eos.has_value() || options.eos_of_model) {
    return "with --eos the number of targets, which divides the loss, changes "
           "from step to step";
  }
  return "";
}

absl::StatusOr<bool> ParseDecay(const std::string& name) {
  if (name == "all") return false;
  if (name == "matrices") return true;
  return absl::InvalidArgumentError(
      absl::StrCat("--decay=", name, ": must be all or matrices"));
}

absl::StatusOr<std::optional<Float8Recipe>> ParseFloat8(
    const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "tensorwise") return Float8Recipe::kTensorwise;
  if (name == "rowwise") return Float8Recipe::kRowwise;
  return absl::InvalidArgumentError(
      absl::StrCat("--float8=", name, ": must be tensorwise or rowwise"));
}

absl::StatusOr<nn::Schedule::Shape> ParseSchedule(const std::string& name) {
  const absl::StatusOr<nn::Schedule::Shape> shape =
      nn::ParseScheduleShape(name);
  if (shape.ok()) return shape;
  return absl::InvalidArgumentError(absl::StrCat(
      "--schedule=", name, ": must be constant, linear or cosine"));
}

absl::Status ParseEos(const std::string& text, TrainOptions& options) {
  if (text.empty()) return absl::OkStatus();
  if (text == "config") {
    options.eos_of_model = true;
    return absl::OkStatus();
  }
  int32_t eos = -1;
  if (!absl::SimpleAtoi(text, &eos) || eos < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--eos=", text, ": must be a token, from 0 on, or config"));
  }
  options.eos = eos;
  return absl::OkStatus();
}

absl::Status CheckSource(const TrainOptions& options) {
  if (options.plan == kPrintPlan) return absl::OkStatus();
  if (options.text.empty() == options.tokens.empty()) {
    return absl::InvalidArgumentError(
        "name what to train on: either --text=FILE,... or --tokens=FILE");
  }
  return absl::OkStatus();
}

// Checks for flags that depend on others that are not set.
absl::Status CheckNeeds(const TrainOptions& options) {
  const struct {
    const char* flag;
    bool is_given;
    const char* needs;
    bool is_there;
  } needs[] = {
      {"eval_every", absl::GetFlag(FLAGS_eval_every).is_given, "eval_text",
       !options.eval_text.empty()},
      {"save_every", absl::GetFlag(FLAGS_save_every).is_given, "checkpoints",
       !options.checkpoints.empty()},
      {"keep", absl::GetFlag(FLAGS_keep).is_given, "checkpoints",
       !options.checkpoints.empty()},
      {"save_async", options.save_async, "checkpoints",
       !options.checkpoints.empty()},
      {"resume", options.resume, "checkpoints", !options.checkpoints.empty()},
      {"may_change", !options.may_change.empty(), "resume", options.resume},
      {"prompt", !options.prompt.empty(), "sample", options.sample > 0},
      {"temperature", absl::GetFlag(FLAGS_temperature).is_given, "sample",
       options.sample > 0},
      {"top_k", absl::GetFlag(FLAGS_top_k).is_given, "sample",
       options.sample > 0},
      {"prompt", !options.prompt.empty(), "text", !options.text.empty()},
      {"token_bits", options.token_bits != 0, "tokens",
       !options.tokens.empty()},
      {"eos=config", options.eos_of_model, "model", !options.model_dir.empty()},
      {"overwrite", options.overwrite, "save", !options.save_dir.empty()},
      {"save_dtype", options.save_dtype.has_value(), "save",
       !options.save_dir.empty()},
      {"report_every", absl::GetFlag(FLAGS_report_every).is_given, "report",
       !options.report.empty()},
  };
  for (const auto& need : needs) {
    if (!need.is_given || need.is_there) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--", need.flag, " needs --", need.needs, ", which is not set"));
  }
  return absl::OkStatus();
}

// Checks for flags that have no effect together with others.
absl::Status CheckConflicts(const TrainOptions& options) {
  const std::pair<const char*, bool> of_new_models[] = {
      {"dim", absl::GetFlag(FLAGS_dim).is_given},
      {"layers", absl::GetFlag(FLAGS_layers).is_given},
      {"heads", absl::GetFlag(FLAGS_heads).is_given},
      {"kv_heads", absl::GetFlag(FLAGS_kv_heads).is_given},
      {"ffn", absl::GetFlag(FLAGS_ffn).is_given},
      {"vocab", absl::GetFlag(FLAGS_vocab).is_given},
      {"seed", absl::GetFlag(FLAGS_seed).is_given},
  };
  for (const auto& [flag, is_given] : of_new_models) {
    if (!options.model_dir.empty() && is_given) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", flag, " describes a new model, but --model=", options.model_dir,
          " brings its own"));
    }
  }
  if (options.run.engine != EngineKind::kFake && options.verbose) {
    return absl::InvalidArgumentError(
        "--verbose needs --engine=fake, which prints the plan");
  }
  if (options.run.engine == EngineKind::kFake && !options.save_dir.empty()) {
    return absl::InvalidArgumentError(
        "--save: --engine=fake computes no values to save");
  }
  if (options.run.engine == EngineKind::kFake && !options.checkpoints.empty()) {
    return absl::InvalidArgumentError(
        "--checkpoints: --engine=fake computes no values to save");
  }
  if (options.run.engine == EngineKind::kFake && !options.eval_text.empty()) {
    return absl::InvalidArgumentError(
        "--eval_text: --engine=fake computes no values to evaluate");
  }
  if (options.run.engine == EngineKind::kFake && options.sample > 0) {
    return absl::InvalidArgumentError(
        "--sample: --engine=fake computes no logits to sample from");
  }
  const bool has_tp =
      std::any_of(options.mesh.begin(), options.mesh.end(),
                  [](const MeshAxis& axis) { return axis.name == "tp"; });
  if (!options.plan.empty() && options.plan != kPrintPlan && !has_tp) {
    return absl::InvalidArgumentError(
        absl::StrCat("--plan=", options.plan, " needs a tp axis, but --mesh=",
                     absl::GetFlag(FLAGS_mesh), " has none"));
  }
  return CheckNeeds(options);
}

absl::Status CheckNumbers(const TrainOptions& options) {
  for (const std::string& name : options.may_change) {
    if (name == "data" || name == "dtype") continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--may_change=", name, ": must be data, dtype or data,dtype"));
  }
  CH_RETURN_IF_ERROR(CheckAtLeast("global_batch", options.global_batch, 1));
  CH_RETURN_IF_ERROR(CheckAtLeast("seq_len", options.seq_len, 1));
  CH_RETURN_IF_ERROR(CheckAtLeast("steps", options.steps, 1));
  CH_RETURN_IF_ERROR(CheckAtLeast("accumulate", options.accumulate, 1));
  if (options.accumulate > options.global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("--accumulate=", options.accumulate, ": must be at most ",
                     options.global_batch, ", the rows of --global_batch"));
  }
  if (options.token_bits != 0 && options.token_bits != 16 &&
      options.token_bits != 32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--token_bits=", options.token_bits, ": must be 16, 32 or 0"));
  }
  CH_RETURN_IF_ERROR(CheckNotNegative("lr", options.lr));
  CH_RETURN_IF_ERROR(CheckAtLeast("warmup", options.warmup, 0));
  if (options.schedule != nn::Schedule::Shape::kConstant &&
      options.warmup > options.steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("--warmup=", options.warmup, ": must be at most ",
                     options.steps, ", the value of --steps"));
  }
  CH_RETURN_IF_ERROR(CheckAtLeast("eval_every", options.eval_every, 0));
  CH_RETURN_IF_ERROR(CheckAtLeast("save_every", options.save_every, 0));
  CH_RETURN_IF_ERROR(CheckAtLeast("keep", options.keep, 0));
  CH_RETURN_IF_ERROR(CheckAtLeast("report_every", options.report_every, 0));
  CH_RETURN_IF_ERROR(CheckAtLeast("sample", options.sample, 0));
  CH_RETURN_IF_ERROR(CheckNotNegative("temperature", options.temperature));
  CH_RETURN_IF_ERROR(CheckAtLeast("top_k", options.top_k, 0));
  CH_RETURN_IF_ERROR(CheckFraction("beta1", options.beta1));
  CH_RETURN_IF_ERROR(CheckFraction("beta2", options.beta2));
  // With eps = 0, rows of tokens that never occur would be divided by 0.
  CH_RETURN_IF_ERROR(CheckPositive("eps", options.eps));
  CH_RETURN_IF_ERROR(CheckNotNegative("weight_decay", options.weight_decay));
  CH_RETURN_IF_ERROR(CheckNotNegative("clip_norm", options.clip_norm));
  if (options.cuda_graphs == StepGraphOptions::Mode::kOn) {
    std::string reason = ReasonAgainstGraphs(options);
    if (reason.empty() && !options.report.empty()) {
      reason = "steps that --report traces are not replayed";
    }
    if (!reason.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--cuda_graphs=on: ", reason, "; or use auto"));
    }
  }
  const int fake_rank = options.run.fake_rank;
  if (fake_rank < 0 || fake_rank >= options.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fake_rank=", fake_rank, ": the mesh has ranks ",
                     "0 to ", options.world_size() - 1));
  }
  return absl::OkStatus();
}

}  // namespace

int TrainOptions::world_size() const {
  int size = 1;
  for (const MeshAxis& axis : mesh) size *= axis.size;
  return size;
}

int TrainOptions::AxisSize(absl::string_view name) const {
  for (const MeshAxis& axis : mesh) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

std::vector<std::pair<std::string, std::string>> Settings(
    const TrainOptions& options) {
  const nn::LlamaConfig c = options.config.Resolved();
  return {
      {"parameters", absl::StrCat(options.config.NumParameters())},
      {"width", absl::StrCat(c.dim)},
      {"blocks", absl::StrCat(c.layers)},
      {"heads (of keys)", absl::StrCat(c.heads, " (", c.kv_heads, ")")},
      {"inner width", absl::StrCat(c.ffn)},
      {"vocabulary", absl::StrCat(c.vocab)},
      {"rows per step", absl::StrCat(options.global_batch)},
      {"micro-batches", absl::StrCat(options.accumulate)},
      {"tokens per row", absl::StrCat(options.seq_len)},
      {"documents end with token", options.eos.has_value()
                                       ? absl::StrCat(*options.eos)
                                       : std::string("none")},
      {"steps", absl::StrCat(options.steps)},
      {"learning rate", absl::StrCat(options.lr)},
      {"warmup", absl::StrCat(options.warmup)},
      {"weight decay", absl::StrCat(options.weight_decay)},
      {"maximum gradient norm", options.clip_norm > 0
                                    ? absl::StrCat(options.clip_norm)
                                    : std::string("none")},
      {"tensor-parallel plan", options.plan.empty() ? "Llama's" : options.plan},
      {"dtype of computations", Name(options.dtype)},
      {"float8", NameOf(options.float8)},
      {"recomputes", options.recompute ? "yes" : "no"},
      {"offloads", options.offload ? "yes" : "no"},
  };
}

const char* NameOf(std::optional<Float8Recipe> recipe) {
  if (!recipe.has_value()) return "none";
  return recipe == Float8Recipe::kTensorwise ? "tensorwise" : "rowwise";
}

absl::StatusOr<std::vector<MeshAxis>> ParseMesh(const std::string& text) {
  const std::string names[] = {"replicate", "fsdp", "tp"};
  if (text.empty()) {
    return absl::InvalidArgumentError(
        "--mesh= is empty: must be AXIS:SIZE,..., e.g. fsdp:2,tp:2");
  }
  absl::StatusOr<std::vector<MeshAxis>> parsed =
      ParseMeshAxes(text, names, /*max_ranks=*/1 << 20);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--mesh=", std::string(parsed.status().message())));
  }
  std::vector<MeshAxis> axes = *std::move(parsed);
  const bool has_fsdp = std::any_of(
      axes.begin(), axes.end(), [](const auto& a) { return a.name == "fsdp"; });
  if (!has_fsdp) {
    // Outside of tp, inside of replicate: its usual place.
    const auto at = std::find_if(axes.begin(), axes.end(),
                                 [](const auto& a) { return a.name == "tp"; });
    axes.insert(at, {"fsdp", 1});
  }
  return axes;
}

bool ReplaysSteps(const TrainOptions& options) {
  return options.cuda_graphs != StepGraphOptions::Mode::kOff &&
         ReasonAgainstGraphs(options).empty();
}

absl::StatusOr<TrainOptions> ParseTrainOptions(int argc, char** argv) {
  CH_RETURN_IF_ERROR(ParseFlags(argc, argv, kSource));
  TrainOptions options;
  CH_ASSIGN_OR_RETURN(options.mesh, ParseMesh(absl::GetFlag(FLAGS_mesh)));
  options.run.ranks = options.world_size();
  options.run.ranks_from = absl::StrCat("--mesh=", absl::GetFlag(FLAGS_mesh));
  CH_ASSIGN_OR_RETURN(options.checkpoints,
                      PathOf("checkpoints", absl::GetFlag(FLAGS_checkpoints)));
  // A run that can be resumed has not failed.
  if (!options.checkpoints.empty()) options.run.stop_status = 0;
  CH_RETURN_IF_ERROR(ReadLaunchFlags(options.run));
  CH_ASSIGN_OR_RETURN(options.plan, PathOf("plan", absl::GetFlag(FLAGS_plan)));
  options.text = absl::GetFlag(FLAGS_text);
  CH_ASSIGN_OR_RETURN(options.tokens,
                      PathOf("tokens", absl::GetFlag(FLAGS_tokens)));
  CH_ASSIGN_OR_RETURN(options.model_dir,
                      PathOf("model", absl::GetFlag(FLAGS_model)));
  options.token_bits = absl::GetFlag(FLAGS_token_bits);
  CH_RETURN_IF_ERROR(ParseEos(absl::GetFlag(FLAGS_eos), options));
  options.config.dim = absl::GetFlag(FLAGS_dim).value;
  options.config.layers = absl::GetFlag(FLAGS_layers).value;
  options.config.heads = absl::GetFlag(FLAGS_heads).value;
  options.config.kv_heads = absl::GetFlag(FLAGS_kv_heads).value;
  options.config.ffn = absl::GetFlag(FLAGS_ffn).value;
  options.config.vocab = absl::GetFlag(FLAGS_vocab).value;
  options.global_batch = absl::GetFlag(FLAGS_global_batch);
  options.accumulate = absl::GetFlag(FLAGS_accumulate);
  options.seq_len = absl::GetFlag(FLAGS_seq_len);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.lr = absl::GetFlag(FLAGS_lr);
  CH_ASSIGN_OR_RETURN(options.schedule,
                      ParseSchedule(absl::GetFlag(FLAGS_schedule)));
  options.warmup = absl::GetFlag(FLAGS_warmup);
  options.beta1 = absl::GetFlag(FLAGS_beta1);
  options.beta2 = absl::GetFlag(FLAGS_beta2);
  options.eps = absl::GetFlag(FLAGS_eps);
  options.weight_decay = absl::GetFlag(FLAGS_weight_decay);
  CH_ASSIGN_OR_RETURN(options.decay_matrices_only,
                      ParseDecay(absl::GetFlag(FLAGS_decay)));
  options.clip_norm = absl::GetFlag(FLAGS_clip_norm);
  options.seed = absl::GetFlag(FLAGS_seed).value;
  options.seed_is_given = absl::GetFlag(FLAGS_seed).is_given;
  CH_ASSIGN_OR_RETURN(options.dtype,
                      ParseDType("dtype", absl::GetFlag(FLAGS_dtype)));
  CH_ASSIGN_OR_RETURN(options.float8, ParseFloat8(absl::GetFlag(FLAGS_float8)));
  options.recompute = absl::GetFlag(FLAGS_recompute);
  options.offload = absl::GetFlag(FLAGS_offload);
  CH_ASSIGN_OR_RETURN(options.cuda_graphs,
                      ParseCudaGraphs(absl::GetFlag(FLAGS_cuda_graphs)));
  options.eval_text = absl::GetFlag(FLAGS_eval_text);
  options.eval_every = absl::GetFlag(FLAGS_eval_every).value;
  options.save_every = absl::GetFlag(FLAGS_save_every).value;
  options.keep = absl::GetFlag(FLAGS_keep).value;
  options.save_async = absl::GetFlag(FLAGS_save_async);
  const GivenInt step = absl::GetFlag(FLAGS_resume_step);
  if (step.is_given) options.resume_step = step.value;
  options.resume = absl::GetFlag(FLAGS_resume) || step.is_given;
  options.may_change = absl::GetFlag(FLAGS_may_change);
  options.sample = absl::GetFlag(FLAGS_sample);
  CH_ASSIGN_OR_RETURN(options.prompt,
                      PathOf("prompt", absl::GetFlag(FLAGS_prompt)));
  options.temperature = absl::GetFlag(FLAGS_temperature).value;
  options.top_k = absl::GetFlag(FLAGS_top_k).value;
  CH_ASSIGN_OR_RETURN(options.verify,
                      PathOf("verify", absl::GetFlag(FLAGS_verify)));
  CH_ASSIGN_OR_RETURN(options.metrics,
                      PathOf("metrics", absl::GetFlag(FLAGS_metrics)));
  CH_ASSIGN_OR_RETURN(options.report,
                      PathOf("report", absl::GetFlag(FLAGS_report)));
  options.report_every = absl::GetFlag(FLAGS_report_every).value;
  CH_ASSIGN_OR_RETURN(options.save_dir,
                      PathOf("save", absl::GetFlag(FLAGS_save)));
  if (const std::string name = absl::GetFlag(FLAGS_save_dtype); !name.empty()) {
    CH_ASSIGN_OR_RETURN(options.save_dtype, ParseDType("save_dtype", name));
  }
  options.overwrite = absl::GetFlag(FLAGS_overwrite);
  options.verbose = absl::GetFlag(FLAGS_verbose);
  CH_RETURN_IF_ERROR(CheckSource(options));
  CH_RETURN_IF_ERROR(CheckConflicts(options));
  CH_RETURN_IF_ERROR(CheckNumbers(options));
  options.run.agreed = AgreedOptions(options);
  return options;
}

}  // namespace crosshatch::examples
