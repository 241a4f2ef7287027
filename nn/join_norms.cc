// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/join_norms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/mesh_communicator.h"

namespace crosshatch::nn {

absl::StatusOr<double> JoinNorms(const DeviceMesh& over,
                                 absl::Span<const DeviceMesh> meshes,
                                 double norm, double norm_type) {
  CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(over));
  std::set<int> here;
  for (const DeviceMesh& mesh : meshes) {
    const DeviceMesh root = mesh.root();
    here.insert(root.layout().ranks().begin(), root.layout().ranks().end());
  }
  if (here.empty()) here.insert(over.world().world_rank());
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      comm->Exchange(absl::StrCat(absl::StrJoin(here, ","), ";",
                                  std::bit_cast<uint64_t>(norm)),
                     "norms of gradients on different meshes"));
  // By rank, the first rank of `over` that counts it.
  std::map<std::string, int> first_of;
  std::map<std::string, std::string> counted_in;
  double joined = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(texts[i], absl::MaxSplits(';', 1));
    const auto& [ranks, text] = parts;
    const int by = comm->world_ranks()[i];
    if (!first_of.try_emplace(ranks, by).second) continue;
    for (const absl::string_view rank : absl::StrSplit(ranks, ',')) {
      const auto& [at, is_new] =
          counted_in.try_emplace(std::string(rank), ranks);
      if (is_new) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the norm of gradients on different meshes: rank ",
          first_of[at->second], " has parameters on ranks ", at->second,
          ", and rank ", by, " on ranks ", ranks,
          ": each rank belongs to one set; give the ranks of a stage a world "
          "of their own (World::Subset)"));
    }
    uint64_t bits = 0;
    CH_CHECK(absl::SimpleAtoi(text, &bits)) << text;
    const auto value = std::bit_cast<double>(bits);
    if (std::isnan(joined) || std::isnan(value)) {
      joined = joined + value;
    } else if (std::isinf(norm_type)) {
      joined = std::max(joined, value);
    } else {
      joined += norm_type == 2 ? value * value : std::pow(value, norm_type);
    }
  }
  if (std::isinf(norm_type)) return joined;
  return norm_type == 2 ? std::sqrt(joined) : std::pow(joined, 1 / norm_type);
}

}  // namespace crosshatch::nn
