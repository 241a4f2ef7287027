// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/same_inputs.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch::examples {
namespace {

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
