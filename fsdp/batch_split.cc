// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/batch_split.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

void AddRandomness(const nn::Module& module, std::optional<uint64_t>& all) {
  if (const std::optional<uint64_t> own = module.row_randomness()) {
    // The order counts, because modules may have swapped places.
    all = all.value_or(0) * 0x100000001b3u + *own;
  }
  for (const auto& [name, child] : module.children()) {
    AddRandomness(*child, all);
  }
}

struct RowReport {
  int64_t rows = 0;
  uint64_t randomness = 0;
  std::string row_size;  ///< Size of a row of the first input that has rows.
  std::string sizes;     ///< Sizes of all inputs.
};

// More than the number of padded lengths of a program, yet little memory.
constexpr size_t kMaxSizes = 4096;

// Exchanges reports with all ranks of `mesh`; returns them in mesh order.
absl::StatusOr<std::vector<RowReport>> Exchange(const DeviceMesh& mesh,
                                                const std::string& module_name,
                                                const RowReport& here) {
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      communicator->Exchange(
                          absl::StrCat(here.rows, ";", here.randomness, ";",
                                       here.row_size, ";", here.sizes),
                          absl::StrCat("rows of the batch of ", module_name)));
  std::vector<RowReport> all;
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = absl::StrSplit(text, ';');
    RowReport& report = all.emplace_back();
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &report.rows) ||
        !absl::SimpleAtoi(parts[1], &report.randomness)) {
      return absl::InternalError(
          absl::StrCat("malformed report of batch rows: ", text));
    }
    report.row_size = parts[2];
    report.sizes = parts[3];
    if (report.randomness != all[0].randomness) {
      const absl::Span<const int> ranks = mesh.layout().ranks();
      return absl::FailedPreconditionError(absl::StrCat(
          "dropout in ", module_name, " draws differently on ranks ", ranks[0],
          " and ", ranks[all.size() - 1],
          ": SetDropoutStep takes the same seed and step on every rank, and "
          "SetDropoutTraining the same mode"));
    }
  }
  return all;
}

// Returns an error that names two ranks on which a module saw rows of different
// widths.
absl::Status CompareWidths(const DeviceMesh& mesh,
                           const std::string& module_name,
                           const std::string& first_input,
                           const nn::RowWidths& here) {
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  std::string report;
  for (const auto& [module, width] : here) {
    absl::StrAppend(&report, module, "\n", width, "\n");
  }
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      communicator->Exchange(report,
                             absl::StrCat("widths of rows in ", module_name)));
  struct Seen {
    std::string width;
    int rank;
  };
  std::map<std::string, Seen> all;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int rank = mesh.layout().ranks()[i];
    const std::vector<std::string> lines = absl::StrSplit(texts[i], '\n');
    for (size_t line = 0; line + 1 < lines.size(); line += 2) {
      // A rank without rows has recorded no width.
      const auto& [at, is_first] =
          all.try_emplace(lines[line], Seen{lines[line + 1], rank});
      const auto& [module, seen] = *at;
      if (is_first || seen.width == lines[line + 1]) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          module, " in ", module_name, " draws for rows that are ", seen.width,
          " of its input's batch dim on rank ", seen.rank, " and ",
          lines[line + 1], " on rank ", rank,
          ": the first input's rows are taken as the batch, ", first_input,
          " here; if it is no batch, put the batch first, or provide the rows "
          "with a BatchRowsScope (nn/batch_rows.h)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<uint64_t> RowRandomness(absl::Span<nn::Module* const> modules) {
  std::optional<uint64_t> all;
  for (const nn::Module* module : modules) AddRandomness(*module, all);
  return all;
}

void BatchSplit::Begin(const DeviceMesh& mesh, const nn::Module& module,
                       const std::string& module_name, TensorSpan inputs,
                       uint64_t randomness) {
  RowReport here = {.randomness = randomness};
  if (const auto& count = module.row_count()) {
    here.randomness += static_cast<uint64_t>(count->Before(module));
  }
  const Tensor* first = nullptr;
  for (const Tensor& input : inputs) {
    const Shape sizes = input.defined() ? input.sizes() : Shape();
    absl::StrAppend(&here.sizes, "[", absl::StrJoin(sizes, "x"), "]");
    if (first != nullptr || !nn::RowsOf(input).has_value()) continue;
    first = &input;
    here.rows = sizes[0];
    here.row_size = absl::StrJoin(sizes.begin() + 1, sizes.end(), "x");
  }
  CH_CHECK(first != nullptr)
      << "FSDP: no input of " << module_name
      << " has dims (an undefined tensor "
      << "has none), so the number of rows of the batch is unknown, which "
      << "dropout depends on; provide it with a BatchRowsScope "
         "(nn/batch_rows.h)";
  nn::BatchRows rows = {.here = here.rows, .over = mesh.layout()};
  RankContext& context = RankContext::Current();
  std::vector<RowReport> all;
  if (!nn::IsDistributedOver(*first, mesh.layout()) && !context.poisoned()) {
    absl::StatusOr<std::vector<RowReport>> report =
        Exchange(mesh, module_name, here);
    if (report.ok()) {
      all = *std::move(report);
    } else {
      context.Poison(report.status());
    }
  }
  running_.emplace(Running{.mesh = mesh,
                           .module_name = module_name,
                           .first_input = first->Describe(),
                           .compares = !all.empty()});
  // Other modules of the tree may run forwards with inputs of the same sizes.
  running_->sizes = absl::HashOf(module_name);
  for (size_t i = 0; i < all.size(); ++i) {
    if (mesh.layout().ranks()[i] == context.world_rank()) {
      rows.first = rows.total;
    }
    rows.total += all[i].rows;
    running_->sizes = absl::HashOf(running_->sizes, all[i].sizes);
    // Rows that are padded to different lengths may have different widths.
    if (all[i].row_size != all[0].row_size) running_->compares = false;
  }
  if (all.empty()) rows.total = rows.here;
  if (compared_.contains(running_->sizes)) running_->compares = false;
  widths_.clear();
  scope_.emplace(std::move(rows), running_->compares ? &widths_ : nullptr,
                 &module);
}

void BatchSplit::Abandon() {
  scope_.reset();
  running_.reset();
}

void BatchSplit::End() {
  if (!running_.has_value()) return;
  const Running ended = *std::move(running_);
  Abandon();
  RankContext& context = RankContext::Current();
  if (!ended.compares || context.poisoned()) return;
  if (compared_.size() >= kMaxSizes) compared_.clear();
  compared_.insert(ended.sizes);
  absl::Status status =
      CompareWidths(ended.mesh, ended.module_name, ended.first_input, widths_);
  if (!status.ok()) context.Poison(std::move(status));
}

}  // namespace crosshatch::fsdp
