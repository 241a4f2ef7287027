// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/run_identity.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/tp/llama_plan.h"
#include "nlohmann/json.hpp"

namespace crosshatch::examples {
namespace {

using Json = nlohmann::json;

/// Returns the flag for a field of config.json of models that flags describe.
absl::string_view FlagOf(absl::string_view field) {
  constexpr std::pair<const char*, const char*> kFlags[] = {
      {"hidden_size", "dim"},           {"num_hidden_layers", "layers"},
      {"num_attention_heads", "heads"}, {"num_key_value_heads", "kv_heads"},
      {"intermediate_size", "ffn"},     {"vocab_size", "vocab"}};
  for (const auto& [name, flag] : kFlags) {
    if (field == name) return flag;
  }
  return "";
}

std::string Was(absl::string_view what, absl::string_view before,
                absl::string_view now) {
  return absl::StrCat(what, " was ", before, " and is ", now);
}

constexpr char kModel[] = "model";

struct Change {
  std::string text;  ///< A clause: "--dtype was float32 and is bfloat16".
  /// The --may_change name that allows it; empty if always allowed, kModel if
  /// never.
  std::string allowed_by;
};

/// Adds a change for each field that differs between two texts of config.json.
void CompareModels(const std::string& before, const std::string& now,
                   std::vector<Change>& changes) {
  const Json a = Json::parse(before, nullptr, /*allow_exceptions=*/false);
  const Json b = Json::parse(now);
  if (!a.is_object()) {
    changes.push_back({"the checkpoint does not describe its model", kModel});
    return;
  }
  const std::map<std::string, Json> of_a = a.flatten();
  const std::map<std::string, Json> of_b = b.flatten();
  std::set<std::string> names;
  for (const auto& [name, value] : of_a) names.insert(name);
  for (const auto& [name, value] : of_b) names.insert(name);
  const auto print = [](const std::map<std::string, Json>& fields,
                        const std::string& name) -> std::string {
    const auto found = fields.find(name);
    return found == fields.end() ? "not set" : found->second.dump();
  };
  for (const std::string& name : names) {
    const std::string was = print(of_a, name);
    const std::string is = print(of_b, name);
    if (was == is) continue;
    const absl::string_view field = absl::StripPrefix(name, "/");
    const absl::string_view flag = FlagOf(field);
    changes.push_back(
        {absl::StrCat(
             Was(field, was, is),
             flag.empty() ? "" : absl::StrCat(" (--", flag, "=", was, ")")),
         kModel});
  }
}

std::string Rows(const RunIdentity& run) {
  return absl::StrCat(run.rows, " rows of ", run.row_size, " tokens");
}

std::string Eos(int64_t token) {
  return token == RunIdentity::kNoEos ? "not given" : absl::StrCat(token);
}

constexpr int64_t kWholeBytes = int64_t{16} << 20;
constexpr int64_t kBeginBytes = int64_t{4} << 20;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kPages = 3000;

/// Hashes up to `count` bytes at offset `at`.
uint64_t HashPiece(std::ifstream& file, int64_t at, int64_t count,
                   std::vector<char>& bytes, uint64_t hash) {
  bytes.resize(static_cast<size_t>(count));
  file.clear();
  file.seekg(at);
  file.read(bytes.data(), count);
  return HashBytes(hash, bytes.data(), file.gcount());
}

/// Returns "config of hash ..., model.safetensors of hash ...".
absl::StatusOr<std::string> DescribeModel(const std::string& dir) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename();
    if (name == "config.json" || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json")) {
      names.push_back(name);
    }
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot read ", dir));
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    CH_ASSIGN_OR_RETURN(const uint64_t hash,
                        SampleHashOfFile(absl::StrCat(dir, "/", name)));
    absl::StrAppend(&text, ", ", name, " (hash ", absl::Hex(hash), ")");
  }
  return text;
}

}  // namespace

RunIdentity RunIdentity::Of(const TrainOptions& options,
                            const TokenSource& source) {
  std::string plan;
  if (options.AxisSize("tp") > 1) {
    plan = options.plan.empty() ? tp::LlamaPlanText(options.config)
                                : options.plan_text;
  }
  std::string dtype = options.dtype == kBFloat16 ? "bfloat16" : "float32";
  if (options.float8.has_value()) {
    absl::StrAppend(&dtype, " --float8=", NameOf(options.float8));
  }
  return {.model = checkpoint::FormatConfig(options.config),
          .dtype = std::move(dtype),
          .plan = std::move(plan),
          .eos = options.eos.has_value() ? *options.eos : kNoEos,
          .tokens = source.size(),
          .hash = static_cast<int64_t>(source.hash()),
          .rows = options.global_batch,
          .row_size = options.seq_len};
}

std::vector<std::pair<std::string, nn::BoundValues::Variable>>
RunIdentity::Variables(const std::string& prefix) {
  return {{prefix + "model", &model},      {prefix + "dtype", &dtype},
          {prefix + "plan", &plan},        {prefix + "eos", &eos},
          {prefix + "tokens_hash", &hash}, {prefix + "rows", &rows},
          {prefix + "row_size", &row_size}};
}

absl::StatusOr<std::vector<std::string>> RunIdentity::ChangesTo(
    const RunIdentity& now, const std::vector<std::string>& may_change) const {
  std::vector<Change> changes;
  if (!model.empty()) CompareModels(model, now.model, changes);
  if (!dtype.empty() && dtype != now.dtype) {
    changes.push_back({Was("--dtype", dtype, now.dtype), "dtype"});
  }
  if (tokens != now.tokens) {
    changes.push_back({Was("the number of tokens", absl::StrCat(tokens),
                           absl::StrCat(now.tokens)),
                       "data"});
  } else if (hash != 0 && hash != now.hash) {
    // The same number of tokens from another text or tokenizer.
    changes.push_back({"the tokens differ (their number is the same)", "data"});
  }
  // A mesh without a tp axis has no plan.
  if (!plan.empty() && !now.plan.empty() && plan != now.plan) {
    changes.push_back({"--plan was different", ""});
  }
  if (eos != kUnknown && eos != now.eos) {
    changes.push_back({Was("--eos", Eos(eos), Eos(now.eos)), ""});
  }
  if (rows != 0 && (rows != now.rows || row_size != now.row_size)) {
    changes.push_back({Was("a step", Rows(*this), Rows(now)), ""});
  }
  std::vector<std::string> allowed;
  std::vector<std::string> refused;
  std::set<std::string> allowing;
  for (const auto& [text, allowed_by] : changes) {
    if (allowed_by != kModel &&
        (allowed_by.empty() || absl::c_linear_search(may_change, allowed_by))) {
      allowed.push_back(text);
      continue;
    }
    refused.push_back(text);
    if (allowed_by != kModel) allowing.insert(allowed_by);
  }
  if (refused.empty()) return allowed;
  return absl::InvalidArgumentError(absl::StrCat(
      absl::StrJoin(refused, ", "), "; restore the former values",
      allowing.empty()
          ? ""
          : absl::StrCat(", or allow the change with --may_change=",
                         absl::StrJoin(allowing, ","))));
}

absl::StatusOr<uint64_t> SampleHashOfFile(const std::string& path) {
  std::error_code error;
  const auto size =
      static_cast<int64_t>(std::filesystem::file_size(path, error));
  std::ifstream file(path, std::ios::binary);
  if (error || !file.is_open()) {
    return absl::ErrnoToStatus(error ? error.value() : errno,
                               absl::StrCat("cannot read ", path));
  }
  std::vector<char> bytes;
  const int64_t begin = size <= kWholeBytes ? size : kBeginBytes;
  uint64_t hash = HashPiece(file, 0, begin, bytes, /*hash=*/size);
  const int64_t stride = std::max(kPageBytes, (size - begin) / kPages);
  for (int64_t at = begin; at < size; at += stride) {
    hash = HashPiece(file, at, kPageBytes, bytes, hash);
  }
  return hash;
}

absl::Status CheckSameInputs(World& world, const TrainOptions& options,
                             const TokenSource& tokens,
                             const TokenSource* eval) {
  const auto describe = [](const TokenSource& source) {
    return absl::StrCat(source.size(), " tokens (hash ",
                        absl::Hex(source.hash()), ")");
  };
  std::string own = describe(tokens);
  if (eval != nullptr) absl::StrAppend(&own, ", ", describe(*eval));
  if (!options.plan.empty()) {
    absl::StrAppend(&own, ", a plan (hash ",
                    absl::Hex(checkpoint::HashText(options.plan_text)), ")");
  }
  // A dry run reads no weights.
  if (!options.model_dir.empty() && world.engine() != "fake") {
    CH_ASSIGN_OR_RETURN(const std::string model,
                        DescribeModel(options.model_dir));
    absl::StrAppend(&own, model);
  }
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      comm->Exchange(own, "inputs"));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks 0 and ", rank, " read different inputs: ", all[0], " and ",
        all[rank],
        "; give every process the same files, and a pipe to one process only"));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::examples
