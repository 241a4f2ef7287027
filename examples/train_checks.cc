// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/train_checks.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/run_directory.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/page/run_page.h"
#include "crosshatch/examples/report.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"

namespace crosshatch::examples {
namespace {

namespace fs = std::filesystem;

// Bytes and elements below this can be added and scaled without overflow.
constexpr int64_t kMaxElements = int64_t{1} << 58;

// \error if `a` times `b` exceeds kMaxElements.
absl::StatusOr<int64_t> Product(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", a, " times ", b, " is too large"));
  }
  return product;
}

absl::Status CheckSizes(const TrainOptions& options) {
  CH_RETURN_IF_ERROR(options.config.Validate());
  const nn::LlamaConfig c = options.config.Resolved();
  CH_ASSIGN_OR_RETURN(
      const int64_t tokens,
      Product(options.global_batch, options.seq_len,
              "the tokens of a step, --global_batch times --seq_len"));
  if (options.sample > kMaxElements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sample=", options.sample, ": must be at most ", kMaxElements));
  }
  const int64_t widest =
      std::max({c.dim, c.ffn, c.vocab, c.heads * c.head_dim});
  CH_RETURN_IF_ERROR(
      Product(tokens, widest, "the tokens of a step times the model's width")
          .status());
  // Attention scores pair every position with every other.
  CH_ASSIGN_OR_RETURN(
      const int64_t scores,
      Product(tokens, options.seq_len, "the tokens of a step times --seq_len"));
  return Product(scores, c.heads, "the attention scores of a step").status();
}

absl::Status CheckMesh(const TrainOptions& options) {
  if (options.run.engine == EngineKind::kLocal &&
      options.world_size() > kMaxLocalRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--mesh has ", options.world_size(),
                     " ranks: --engine=local runs at "
                     "most ",
                     kMaxLocalRanks,
                     ", each a thread of this process; "
                     "--engine=fake runs one rank of any mesh dry"));
  }
  return absl::OkStatus();
}

// Returns the bytes of keys and values of a prompt and its sample on `ranks`
// ranks, each with its own heads.
double SampleBytes(const TrainOptions& options, int64_t prompt, int ranks) {
  const nn::LlamaConfig c = options.config.Resolved();
  // Per token: keys and values, and the token as a number and as text.
  const double of_token =
      2.0 * static_cast<double>(c.layers) * static_cast<double>(c.kv_heads) *
          static_cast<double>(c.head_dim) *
          static_cast<double>(SizeOf(options.dtype)) / options.AxisSize("tp") +
      2.0 * sizeof(int32_t);
  return ranks * of_token *
         (static_cast<double>(prompt) + static_cast<double>(options.sample));
}

// Checks what Sample would refuse after the training.
absl::Status CheckSample(const TrainOptions& options, int64_t prompt) {
  const nn::RopeScaling& rope = options.config.rope_scaling;
  if (options.sample == 0 || !rope.DependsOnLength() ||
      prompt + options.sample <= rope.original_positions) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--sample=", options.sample, " after a prompt of ", prompt,
      " tokens: the rotary positions of this model depend on the length beyond "
      "its ",
      rope.original_positions, " positions; draw fewer"));
}

bool IsWithin(const fs::path& path, const fs::path& directory) {
  const auto [in_directory, in_path] = std::mismatch(
      directory.begin(), directory.end(), path.begin(), path.end());
  return in_directory == directory.end();
}

// Returns the same for resolved paths, and for a link in `directory` that leads
// out of it.
bool IsIn(const std::string& path, const std::string& directory) {
  const fs::path within = ResolvedPath(directory);
  const fs::path name(path);
  const fs::path parent = name.has_parent_path() ? name.parent_path() : ".";
  return IsWithin(ResolvedPath(path), within) ||
         IsWithin(ResolvedPath(parent.string()) / name.filename(), within);
}

bool IsSameFile(const std::string& a, const std::string& b) {
  struct stat of_a;
  struct stat of_b;
  return stat(a.c_str(), &of_a) == 0 && stat(b.c_str(), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

// Checks a file that the run writes in addition to its other outputs.
absl::Status CheckOutput(const char* flag, const std::string& output,
                         const TrainOptions& options) {
  std::vector<std::string> read = options.text;
  if (!options.tokens.empty()) read.push_back(options.tokens);
  if (!options.plan.empty()) read.push_back(options.plan);
  read.insert(read.end(), options.eval_text.begin(), options.eval_text.end());
  for (const std::string& path : read) {
    if (IsSameFile(output, path)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", output,
                                                     " would overwrite ", path,
                                                     ", which is only read"));
    }
  }
  if (!options.model_dir.empty() && IsIn(output, options.model_dir)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", output, " is in --model=", options.model_dir,
        ", which is only read"));
  }
  if (!options.save_dir.empty() && IsIn(output, options.save_dir)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", output, " is in --save=", options.save_dir,
        ", which is replaced as a whole after training; write it next to that "
        "directory"));
  }
  if (!options.checkpoints.empty() && IsIn(output, options.checkpoints)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", output, " is in --checkpoints=", options.checkpoints,
        ", which holds only checkpoints; write it next to that directory"));
  }
  return absl::OkStatus();
}

absl::Status CheckMetrics(const TrainOptions& options) {
  if (options.metrics.empty()) return absl::OkStatus();
  CH_RETURN_IF_ERROR(CheckOutput("metrics", options.metrics, options));
  return MetricsFile::Check(options.metrics);
}

absl::Status CheckReport(const TrainOptions& options) {
  if (options.report.empty()) return absl::OkStatus();
  CH_RETURN_IF_ERROR(CheckOutput("report", options.report, options));
  if (!options.metrics.empty() &&
      ResolvedPath(options.report) == ResolvedPath(options.metrics)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--report and --metrics are both ", options.report,
                     "; name two files"));
  }
  return RunPage::Check(options.report);
}

absl::Status CheckSave(const TrainOptions& options) {
  if (options.save_dir.empty()) return absl::OkStatus();
  const absl::Status status = checkpoint::CheckSaveDirectory(
      options.save_dir, {.overwrite = options.overwrite});
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("--save: ", std::string(status.message()),
                   absl::IsAlreadyExists(status) ? " (--overwrite)" : ""));
}

absl::Status CheckCheckpoints(const TrainOptions& options) {
  const std::string& dir = options.checkpoints;
  if (dir.empty()) return absl::OkStatus();
  if (!options.save_dir.empty() &&
      (IsIn(dir, options.save_dir) || IsIn(options.save_dir, dir))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--checkpoints=", dir, " and --save=", options.save_dir,
                     " contain each other; name separate directories"));
  }
  if (!options.model_dir.empty() && IsIn(dir, options.model_dir)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--checkpoints=", dir, " is in --model=", options.model_dir,
        ", which is only read"));
  }
  CH_ASSIGN_OR_RETURN(const std::optional<int64_t> latest,
                      checkpoint::LatestIn(dir));
  if (latest.has_value() && !options.resume) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--checkpoints=", dir, " holds ",
        fs::path(checkpoint::StepDirectory(dir, *latest)).filename().string(),
        " of an earlier run: --resume continues it; for a new run name another "
        "directory"));
  }
  if (options.resume_step.has_value()) {
    CH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                        checkpoint::StepsIn(dir));
    if (std::find(steps.begin(), steps.end(), *options.resume_step) ==
        steps.end()) {
      return absl::NotFoundError(absl::StrCat(
          "--resume_step=", *options.resume_step, ": --checkpoints=", dir,
          steps.empty() ? " holds no checkpoint"
                        : absl::StrCat(" holds checkpoints of the steps ",
                                       absl::StrJoin(steps, ", "))));
    }
  }
  return checkpoint::CheckRunDirectory(dir);
}

absl::Status CheckVocabulary(const TrainOptions& options, int32_t token) {
  if (token < options.config.vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "token ", token, " is beyond the vocabulary of ", options.config.vocab,
      "; --vocab must be greater than every token"));
}

absl::Status CheckMemory(const TrainOptions& options, const TokenSource& tokens,
                         int64_t prompt) {
  if (options.run.engine == EngineKind::kFake) return absl::OkStatus();
  // A rank in a process of its own may have the machine to itself.
  const int ranks =
      options.run.engine == EngineKind::kLocal ? options.world_size() : 1;
  const int64_t memory = MachineMemory();
  // A bound before anything of the model's size is allocated: weights,
  // gradients and two moments in float32, and a step's tokens and logits.
  const double bytes = ranks / static_cast<double>(options.world_size()) *
                           16.0 *
                           static_cast<double>(options.config.NumParameters()) +
                       ranks / static_cast<double>(options.world_size()) * 4.0 *
                           static_cast<double>(options.global_batch) *
                           static_cast<double>(options.seq_len) *
                           (4.0 + static_cast<double>(options.config.vocab));
  const auto too_much = [&](double need) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the run needs ", FormatBytes(static_cast<int64_t>(need)),
                     " of memory, and this machine has ", FormatBytes(memory),
                     ": reduce the model, --global_batch or --seq_len, or run "
                     "one rank dry with --engine=fake"));
  };
  // Weights and moments exist while the sample is drawn.
  const double kept = ranks / static_cast<double>(options.world_size()) * 12.0 *
                      static_cast<double>(options.config.NumParameters());
  if (const double drawn = SampleBytes(options, prompt, ranks);
      options.sample > 0 && kept + drawn > static_cast<double>(memory)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--sample=", options.sample, ": keys and values of these tokens take ",
        FormatBytes(static_cast<int64_t>(std::min(drawn, 9e18))),
        " in addition to the model, and this machine has ", FormatBytes(memory),
        "; draw fewer"));
  }
  if (bytes > static_cast<double>(memory)) return too_much(bytes);
  // If sizes do not divide, the last rank has the least.
  CH_ASSIGN_OR_RETURN(const int64_t first, DryPeak(options, tokens, 0));
  CH_ASSIGN_OR_RETURN(const int64_t last,
                      ranks == 1 ? first : DryPeak(options, tokens, ranks - 1));
  const double total =
      static_cast<double>(first) +
      (ranks - 1.0) * static_cast<double>(std::min(first, last));
  if (total > static_cast<double>(memory)) return too_much(total);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const TrainOptions& options) {
  CH_RETURN_IF_ERROR(CheckSizes(options));
  CH_RETURN_IF_ERROR(CheckMesh(options));
  CH_RETURN_IF_ERROR(CheckMetrics(options));
  CH_RETURN_IF_ERROR(CheckReport(options));
  CH_RETURN_IF_ERROR(CheckCheckpoints(options));
  return CheckSave(options);
}

absl::Status CheckTraining(const TrainOptions& options,
                           const TokenSource& tokens) {
  CH_RETURN_IF_ERROR(CheckVocabulary(options, tokens.max_token()));
  if (options.eos.has_value() &&
      tokens.CountTargets(0, tokens.size()) == tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--eos: none of the ", tokens.size(), " tokens is ",
                     *options.eos, ", so no document would end"));
  }
  for (const char c : options.prompt) {
    CH_RETURN_IF_ERROR(CheckVocabulary(options, static_cast<unsigned char>(c)));
  }
  const int64_t prompt = options.prompt.empty()
                             ? std::min(tokens.size(), kDefaultPromptTokens)
                             : static_cast<int64_t>(options.prompt.size());
  CH_RETURN_IF_ERROR(CheckSample(options, prompt));
  CH_RETURN_IF_ERROR(CheckMemory(options, tokens, prompt));
  if (tokens.size() > options.seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--seq_len=", options.seq_len, ": a row needs ", options.seq_len + 1,
      " tokens, but the data have ", tokens.size()));
}

absl::Status CheckEvaluation(const TrainOptions& options,
                             const TokenSource& eval) {
  CH_RETURN_IF_ERROR(CheckVocabulary(options, eval.max_token()));
  if (eval.size() > options.seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--eval_text holds ", eval.size(), " tokens; a row needs the ",
      options.seq_len, " of --seq_len and one more"));
}

}  // namespace crosshatch::examples
