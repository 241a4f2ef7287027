// SPDX-License-Identifier: Apache-2.0

/// \file
/// ckpt: inspects and rewrites checkpoints without ranks (offline.h).

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/process.h"
#include "crosshatch/checkpoint/offline.h"
#include "crosshatch/checkpoint/run_directory.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/nn/models/llama_config.h"

ABSL_FLAG(int, ranks, 0, "reshard: the number of ranks.");
ABSL_FLAG(std::string, prefix, crosshatch::checkpoint::ConvertOptions().prefix,
          "convert: the prefix of the tensors' names.");
ABSL_FLAG(std::string, new_prefix,
          crosshatch::checkpoint::ConvertOptions().new_prefix,
          "convert: the replacement of --prefix.");
ABSL_FLAG(int64_t, max_file_bytes,
          crosshatch::checkpoint::ConvertOptions().max_file_bytes,
          "convert: the maximum size of a file, in bytes.");
ABSL_FLAG(std::string, family, "",
          "convert: name tensors as transformers does for llama, mistral, "
          "qwen2, qwen3 or phi3.");

namespace ckpt = crosshatch::checkpoint;

namespace {

constexpr char kUsage[] =
    "Inspects, verifies, compares and rewrites checkpoints.\n"
    "\n"
    "ckpt inspect DIR              prints the index\n"
    "ckpt verify DIR               reads all data and compares the hashes\n"
    "ckpt diff DIR DIR             prints the differences; exits 1 if there "
    "are any\n"
    "ckpt reshard DIR NEW --ranks=N\n"
    "                              writes the same tensors as files of N "
    "ranks\n"
    "ckpt clean RUN                removes incomplete saves of steps\n"
    "ckpt convert DIR NEW [--prefix=model.] [--max_file_bytes=N]\n"
    "             [--family=FAMILY | --new_prefix=TEXT]\n"
    "                              writes the whole tensors with the prefix, "
    "under\n"
    "                              their names without it";

/// Returns a flag that the command line has set and `allowed` lacks, or "".
std::string ForeignFlag(const std::vector<std::string>& allowed) {
  for (const char* name :
       {"ranks", "prefix", "max_file_bytes", "family", "new_prefix"}) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag->CurrentValue() != flag->DefaultValue() &&
        std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
      return absl::StrCat("--", name, "=", flag->CurrentValue());
    }
  }
  return "";
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "ckpt: %s\n", std::string(status.message()).c_str());
  return 1;
}

int WrongUse(const std::string& why) {
  std::fprintf(stderr, "ckpt: %s; see ckpt --help\n", why.c_str());
  return 1;
}

int Print(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Fail(text.status());
  std::fputs(text->c_str(), stdout);
  const absl::Status written = crosshatch::FlushStandardOutput();
  return written.ok() ? 0 : Fail(written);
}

int Done(const absl::Status& status) { return status.ok() ? 0 : Fail(status); }

/// Returns the table of names of a family; nullopt for an unknown name.
std::optional<ckpt::WeightNames> NamesOfFamily(const std::string& name) {
  using crosshatch::nn::LlamaFamily;
  for (const LlamaFamily family :
       {LlamaFamily::kLlama, LlamaFamily::kMistral, LlamaFamily::kQwen2,
        LlamaFamily::kQwen3, LlamaFamily::kPhi3}) {
    if (name == Name(family)) return ckpt::LlamaNames(family);
  }
  return std::nullopt;
}

int Run(const std::vector<std::string>& words) {
  if (words.empty()) return WrongUse("no command");
  const std::string& command = words[0];
  const bool takes_two =
      command == "diff" || command == "reshard" || command == "convert";
  if (!takes_two && command != "inspect" && command != "verify" &&
      command != "clean") {
    return WrongUse(absl::StrCat("no command \"", command, "\""));
  }
  if (words.size() != (takes_two ? 3u : 2u)) {
    return WrongUse(absl::StrCat(
        command, takes_two ? " takes two directories" : " takes a directory"));
  }
  const std::string family = absl::GetFlag(FLAGS_family);
  std::vector<std::string> allowed;
  if (command == "reshard") allowed = {"ranks"};
  if (command == "convert") {
    allowed = {"prefix", "max_file_bytes", "family"};
    if (family.empty()) allowed.push_back("new_prefix");
  }
  if (const std::string flag = ForeignFlag(allowed); !flag.empty()) {
    return WrongUse(absl::StrCat(command, " takes no ", flag));
  }
  const int ranks = absl::GetFlag(FLAGS_ranks);
  if (command == "reshard" && ranks == 0) {
    return WrongUse("reshard needs --ranks=N");
  }
  ckpt::ConvertOptions options;
  options.prefix = absl::GetFlag(FLAGS_prefix);
  options.names = NamesOfFamily(family);
  if (!family.empty() && !options.names.has_value()) {
    return WrongUse(
        absl::StrCat("--family=", family,
                     " is none of llama, mistral, qwen2, qwen3 and phi3"));
  }
  options.new_prefix = absl::GetFlag(FLAGS_new_prefix);
  options.max_file_bytes = absl::GetFlag(FLAGS_max_file_bytes);
  const std::string& dir = words[1];
  if (command == "inspect") return Print(ckpt::Inspect(dir));
  if (command == "verify") return Print(ckpt::Verify(dir));
  if (command == "clean") {
    std::string report;
    const absl::Status cleaned = ckpt::CleanRunDirectory(dir, report);
    if (cleaned.ok() && report.empty()) report = "nothing to remove\n";
    const int printed = Print(report);
    return cleaned.ok() ? printed : Fail(cleaned);
  }
  const std::string& other = words[2];
  if (command == "reshard") return Done(ckpt::Reshard(dir, other, ranks));
  if (command == "convert") {
    return Done(ckpt::ConvertToHuggingFace(dir, other, options));
  }
  const absl::StatusOr<std::string> difference = ckpt::Diff(dir, other);
  const int printed = Print(difference);
  return printed != 0 || difference->empty() ? printed : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe and the file size limit then cause write errors, after which
  // the incomplete output is removed.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // `bazel run` starts programs in another directory than that of the caller.
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory != nullptr && chdir(directory) != 0) {
    std::perror(directory);
    return 1;
  }
  absl::SetProgramUsageMessage(kUsage);
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  return Run({words.begin() + 1, words.end()});
}
