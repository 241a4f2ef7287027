// SPDX-License-Identifier: Apache-2.0

/// \file
/// ckpt: inspects and rewrites checkpoints without ranks (offline.h).

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/process.h"
#include "crosshatch/checkpoint/offline.h"
#include "crosshatch/checkpoint/run_directory.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/nn/models/llama_config.h"

namespace ckpt = crosshatch::checkpoint;

namespace {

constexpr char kUsage[] =
    "usage: ckpt inspect DIR              what it holds, by its index\n"
    "       ckpt verify DIR               reads all of it, compares the "
    "hashes\n"
    "       ckpt diff DIR DIR             what differs; exits 1 if anything "
    "does\n"
    "       ckpt reshard DIR NEW --ranks=N\n"
    "                                     the same in the files of N ranks\n"
    "       ckpt clean RUN                removes what killed saves of steps "
    "left\n"
    "       ckpt convert DIR NEW [--prefix=model.] [--max_file_bytes=N]\n"
    "                    [--family=FAMILY | --new_prefix=TEXT]\n"
    "                                     the tensors of that prefix, whole, "
    "under\n"
    "                                     their names without it; a family "
    "names\n"
    "                                     them as transformers does:\n"
    "                                     llama, mistral, qwen2, qwen3, phi3\n";

/// Command-line arguments. Take removes a flag, so flags that are left are
/// unknown.
struct Arguments {
  std::vector<std::string> words;
  std::vector<std::string> flags;

  /// Removes --`name` and returns its value; `otherwise` if it is not there.
  std::string Take(const std::string& name, const std::string& otherwise) {
    for (auto flag = flags.begin(); flag != flags.end(); ++flag) {
      absl::string_view value = *flag;
      if (!absl::ConsumePrefix(&value, absl::StrCat("--", name, "="))) continue;
      const std::string taken(value);
      flags.erase(flag);
      return taken;
    }
    return otherwise;
  }
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "ckpt: %s\n", std::string(status.message()).c_str());
  return 1;
}

int WrongUse(const std::string& why) {
  std::fprintf(stderr, "ckpt: %s\n%s", why.c_str(), kUsage);
  return 2;
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

int Run(Arguments arguments) {
  if (arguments.words.empty()) return WrongUse("no command");
  const std::string command = arguments.words[0];
  const bool takes_two =
      command == "diff" || command == "reshard" || command == "convert";
  if (!takes_two && command != "inspect" && command != "verify" &&
      command != "clean") {
    return WrongUse(absl::StrCat("no command \"", command, "\""));
  }
  if (arguments.words.size() != (takes_two ? 3u : 2u)) {
    return WrongUse(absl::StrCat(
        command, takes_two ? " takes two directories" : " takes a directory"));
  }
  int ranks = 0;
  ckpt::ConvertOptions options;
  if (command == "reshard" &&
      !absl::SimpleAtoi(arguments.Take("ranks", ""), &ranks)) {
    return WrongUse("reshard needs --ranks=N");
  }
  if (command == "convert") {
    options.prefix = arguments.Take("prefix", options.prefix);
    const std::string family = arguments.Take("family", "");
    options.names = NamesOfFamily(family);
    if (!family.empty() && !options.names.has_value()) {
      return WrongUse(
          absl::StrCat("--family=", family,
                       " is none of llama, mistral, qwen2, qwen3 and phi3"));
    }
    // With a family the flag is not taken, and so refused.
    if (family.empty()) {
      options.new_prefix = arguments.Take("new_prefix", options.new_prefix);
    }
    const std::string bytes =
        arguments.Take("max_file_bytes", absl::StrCat(options.max_file_bytes));
    if (!absl::SimpleAtoi(bytes, &options.max_file_bytes)) {
      return WrongUse(
          absl::StrCat("--max_file_bytes=", bytes, " is not a number"));
    }
  }
  if (!arguments.flags.empty()) {
    return WrongUse(
        absl::StrCat(command, " takes no ", arguments.flags.front()));
  }
  const std::string& dir = arguments.words[1];
  if (command == "inspect") return Print(ckpt::Inspect(dir));
  if (command == "verify") return Print(ckpt::Verify(dir));
  if (command == "clean") {
    std::string report;
    const absl::Status cleaned = ckpt::CleanRunDirectory(dir, report);
    const int printed = Print(report);
    return cleaned.ok() ? printed : Fail(cleaned);
  }
  const std::string& other = arguments.words[2];
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
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help") return Print(std::string(kUsage));
    (absl::StartsWith(word, "--") ? arguments.flags : arguments.words)
        .push_back(word);
  }
  return Run(arguments);
}
