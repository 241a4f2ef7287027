// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/batch_split.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/mesh/mesh_communicator.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

void AddRandomness(const nn::Module& module, std::optional<uint64_t>& all) {
  if (const std::optional<uint64_t> own = module.row_randomness()) {
    // The order counts: modules may not have changed places.
    all = all.value_or(0) * 0x100000001b3u + *own;
  }
  for (const auto& [name, child] : module.children()) {
    AddRandomness(*child, all);
  }
}

struct Told {
  int64_t rows = 0;
  uint64_t randomness = 0;
};

// By all ranks of `mesh`, in their order.
absl::StatusOr<std::vector<Told>> Exchange(const DeviceMesh& mesh,
                                           const std::string& module_name,
                                           const Told& here) {
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      communicator->Exchange(
                          absl::StrCat(here.rows, ",", here.randomness),
                          absl::StrCat("rows of the batch of ", module_name)));
  std::vector<Told> all;
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = absl::StrSplit(text, ',');
    Told& told = all.emplace_back();
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &told.rows) ||
        !absl::SimpleAtoi(parts[1], &told.randomness)) {
      return absl::InternalError(
          absl::StrCat("the rows of a batch are told as ", text));
    }
    if (told.randomness != all[0].randomness) {
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

}  // namespace

std::optional<uint64_t> RowRandomness(absl::Span<nn::Module* const> modules) {
  std::optional<uint64_t> all;
  for (const nn::Module* module : modules) AddRandomness(*module, all);
  return all;
}

nn::BatchRows ExchangeRows(const DeviceMesh& mesh,
                           const std::string& module_name, TensorSpan inputs,
                           uint64_t randomness) {
  const std::optional<int64_t> here = nn::RowsOf(inputs);
  CH_CHECK(here.has_value())
      << "FSDP: no input of " << module_name << " has dims, so nothing says "
      << "how many rows of the batch it has, which dropout depends on; say it "
      << "by a BatchRowsScope (nn/batch_rows.h)";
  nn::BatchRows whole = {.here = *here, .total = *here, .over = mesh.layout()};
  for (const Tensor& input : inputs) {
    if (!nn::RowsOf(input).has_value()) continue;
    if (nn::IsSpreadOver(input, mesh.layout())) return whole;
    break;
  }
  RankContext& context = RankContext::Current();
  if (context.poisoned()) return whole;
  const absl::StatusOr<std::vector<Told>> all =
      Exchange(mesh, module_name, {*here, randomness});
  if (!all.ok()) {
    context.Poison(all.status());
    return whole;
  }
  const absl::Span<const int> ranks = mesh.layout().ranks();
  nn::BatchRows result = {.here = *here, .over = mesh.layout()};
  for (size_t i = 0; i < all->size(); ++i) {
    if (ranks[i] == context.world_rank()) result.first = result.total;
    result.total += (*all)[i].rows;
  }
  return result;
}

}  // namespace crosshatch::fsdp
