// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains a Llama-style language model on a mesh of ranks; see --help.

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/run_directory.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_checks.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/plan_text.h"
#include "crosshatch/verify/verify_step.h"

namespace crosshatch::examples {
namespace {

// If the caller closed a standard stream, the next opened file would get its
// descriptor, and output would be written into that file.
void FillStandardDescriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

// `bazel run` starts programs in their runfiles, not in the caller's directory.
// A child of such a program inherits the variable, but runs in another
// directory.
bool EnterCallersDirectory() {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  if (directory == nullptr || here.find(".runfiles") == std::string::npos) {
    return true;
  }
  if (chdir(directory) == 0) return true;
  std::perror(directory);
  return false;
}

// They may have the only copy of an earlier run's model.
absl::Status NoteUnfinishedSaves(const TrainOptions& options) {
  std::vector<std::string> found;
  if (!options.save_dir.empty()) {
    CH_ASSIGN_OR_RETURN(found, checkpoint::UnfinishedSaves(options.save_dir));
  }
  if (!options.checkpoints.empty()) {
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> of_steps,
                        checkpoint::UnfinishedSteps(options.checkpoints));
    found.insert(found.end(), of_steps.begin(), of_steps.end());
  }
  for (const std::string& dir : found) {
    std::fprintf(stderr,
                 "train_lm: note: %s is from a save that was interrupted or is "
                 "still running; it is not removed%s\n",
                 dir.c_str(),
                 options.checkpoints.empty()
                     ? ""
                     : " (ckpt clean removes incomplete checkpoints)");
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> EosOfModel(const TrainOptions& options) {
  const std::vector<int64_t>& eos = options.config.eos_tokens;
  if (eos.size() == 1 && eos[0] >= 0 && eos[0] < options.config.vocab) {
    return static_cast<int32_t>(eos[0]);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--eos=config: the eos_token_id of ", options.model_dir, " is [",
      absl::StrJoin(eos, ", "), "], but must be one token of the ",
      options.config.vocab, ": set it with --eos=ID"));
}

// Detects errors that are known before any rank runs. Sets the model's config
// and the engine in `options`.
absl::Status Prepare(TrainOptions& options, std::optional<TokenSource>& tokens,
                     std::optional<TokenSource>& eval, EngineKind engine,
                     int rank) {
  options.run.engine = engine;
  if (!options.model_dir.empty()) {
    CH_ASSIGN_OR_RETURN(checkpoint::ConfigFile file,
                        checkpoint::LoadConfigFile(options.model_dir));
    options.config = std::move(file.config);
    if (rank == 0 && !file.ignored.empty()) {
      std::fprintf(
          stderr,
          "train_lm: note: ignores unknown fields of %s/config.json: %s\n",
          options.model_dir.c_str(), absl::StrJoin(file.ignored, ", ").c_str());
    }
    if (options.eos_of_model) {
      CH_ASSIGN_OR_RETURN(options.eos, EosOfModel(options));
    }
  }
  if (!options.plan.empty()) {
    CH_ASSIGN_OR_RETURN(options.plan_text, checkpoint::ReadFile(options.plan));
    CH_RETURN_IF_ERROR(
        tp::ParsePlan(options.plan_text, options.plan, kMaxDims).status());
  }
  TrainOptions checked = options;
  if (rank != 0) {
    // Only rank 0 writes; other hosts may not have the directories.
    checked.metrics.clear();
    checked.report.clear();
    checked.save_dir.clear();
    checked.checkpoints.clear();
  }
  CH_RETURN_IF_ERROR(CheckOptions(checked));
  CH_ASSIGN_OR_RETURN(tokens, options.tokens.empty()
                                  ? TokenSource::FromText(options.text)
                                  : TokenSource::FromTokenFile(
                                        options.tokens, options.token_bits));
  if (options.eos.has_value()) tokens->EndDocumentsAt(*options.eos);
  CH_RETURN_IF_ERROR(CheckTraining(options, *tokens));
  if (!options.eval_text.empty()) {
    CH_ASSIGN_OR_RETURN(eval, TokenSource::FromText(options.eval_text));
    if (options.eos.has_value()) eval->EndDocumentsAt(*options.eos);
    CH_RETURN_IF_ERROR(CheckEvaluation(options, *eval));
  }
  return NoteUnfinishedSaves(checked);
}

// Prints the plan for the model that the flags describe.
absl::Status PrintPlan(const TrainOptions& options) {
  nn::LlamaConfig config = options.config;
  if (!options.model_dir.empty()) {
    CH_ASSIGN_OR_RETURN(config, checkpoint::LoadConfig(options.model_dir));
  }
  std::printf("%s", tp::LlamaPlanText(config).c_str());
  return absl::OkStatus();
}

// Runs no job: the ranks of a dry run, one after another.
// \returns the exit status: 0 if the step is verified.
absl::StatusOr<int> Verify(TrainOptions options) {
  std::optional<TokenSource> tokens;
  std::optional<TokenSource> eval;
  CH_RETURN_IF_ERROR(
      Prepare(options, tokens, eval, EngineKind::kFake, /*rank=*/0));
  CH_ASSIGN_OR_RETURN(
      const verify::VerifyReport report,
      verify::VerifyStep(
          [&](World& world) {
            return TrainDry(world, options, *tokens, /*steps=*/2);
          },
          // ParallelizeLlama: the loss is divided, and gradients are not.
          options.mesh, {.divisor = 1}));
  std::printf("%s", report.ToString().c_str());
  CH_RETURN_IF_ERROR(checkpoint::WriteFile(options.verify, report.ToTrace(),
                                           checkpoint::FileSystem::Real()));
  return report.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  absl::StatusOr<TrainOptions> options = ParseTrainOptions(argc, argv);
  if (options.ok() && options->plan == kPrintPlan) {
    const absl::Status status = PrintPlan(*options);
    if (status.ok()) return 0;
    options = status;
  }
  if (options.ok() && !options->verify.empty()) {
    const absl::StatusOr<int> ended = Verify(*options);
    if (ended.ok()) return *ended;
    options = ended.status();
  }
  RunOptions run;
  std::optional<TokenSource> tokens;
  std::optional<TokenSource> eval;
  if (options.ok()) run = options->run;
  run.prepare = [&](EngineKind engine, int rank) -> absl::Status {
    CH_RETURN_IF_ERROR(options.status());
    return Prepare(*options, tokens, eval, engine, rank);
  };
  return Run(
      [&](World& world) {
        return Train(world, *options, *tokens,
                     eval.has_value() ? &*eval : nullptr);
      },
      run);
}

}  // namespace
}  // namespace crosshatch::examples

int main(int argc, char** argv) {
  crosshatch::examples::FillStandardDescriptors();
  if (!crosshatch::examples::EnterCallersDirectory()) return 1;
  // Otherwise a closed pipe or the file size limit ends the process before it
  // saves. Ignored, they cause write errors.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  absl::SetProgramUsageMessage(
      "Trains a Llama-style language model on a mesh of ranks.\n\n"
      "  train_lm --text=FILE,... [--mesh=fsdp:2,tp:2] [flags]\n"
      "  train_lm --tokens=FILE --model=DIR [--save=DIR] [flags]");
  const int ended = crosshatch::examples::Main(argc, argv);
  const absl::Status written = crosshatch::FlushStandardOutput();
  if (written.ok() || ended != 0) return ended;
  std::fprintf(stderr, "train_lm: %s\n",
               std::string(written.message()).c_str());
  return 1;
}
