// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/join_norms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch::nn {
namespace {

// The message of a rank.
struct Said {
  std::string ranks;
  double norm = 0;
  absl::Status status;
};

Said Parse(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(';', 3));
  CH_CHECK_EQ(parts.size(), 4u) << text;
  uint64_t bits = 0;
  int code = 0;
  CH_CHECK(absl::SimpleAtoi(parts[1], &bits) &&
           absl::SimpleAtoi(parts[2], &code))
      << text;
  return {parts[0], std::bit_cast<double>(bits),
          absl::Status(static_cast<absl::StatusCode>(code), parts[3])};
}

// Returns whether two ranks report the norm of the same gradients. Norms differ
// slightly between kinds of processors; see GradNorm.
bool AreEqualNorms(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         (std::isfinite(a) && std::isfinite(b) &&
          std::abs(a - b) <= 1e-9 * std::max(a, b));
}

}  // namespace

absl::StatusOr<double> JoinNorms(const DeviceMesh& over,
                                 absl::Span<const DeviceMesh> meshes,
                                 const absl::StatusOr<double>& norm,
                                 double norm_type) {
  CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(over));
  std::set<int> here;
  for (const DeviceMesh& mesh : meshes) {
    const DeviceMesh root = mesh.root();
    here.insert(root.layout().ranks().begin(), root.layout().ranks().end());
  }
  if (here.empty()) here.insert(over.world().world_rank());
  // A rank without a norm takes part, so that no other waits for it.
  const absl::StatusOr<std::vector<std::string>> texts = comm->Exchange(
      absl::StrCat(absl::StrJoin(here, ","), ";",
                   std::bit_cast<uint64_t>(norm.value_or(0)), ";",
                   norm.status().raw_code(), ";", norm.status().message()),
      "norms of gradients on different meshes");
  CH_RETURN_IF_ERROR(norm.status());
  CH_RETURN_IF_ERROR(texts.status());
  std::vector<Said> all;
  for (const std::string& text : *texts) {
    all.push_back(Parse(text));
    if (all.back().status.ok()) continue;
    return absl::Status(
        all.back().status.code(),
        absl::StrCat("on rank ", comm->world_ranks()[all.size() - 1], ": ",
                     all.back().status.message()));
  }
  // For each set of ranks, the first rank of `over` that reports it, and its
  // norm.
  std::map<std::string, int> first_of;
  std::map<std::string, double> norm_of;
  std::map<std::string, std::string> counted_in;
  double joined = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string& ranks = all[i].ranks;
    const double value = all[i].norm;
    const int by = comm->world_ranks()[i];
    if (!first_of.try_emplace(ranks, by).second) {
      if (AreEqualNorms(norm_of[ranks], value)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the norm of gradients on different meshes: ranks ", first_of[ranks],
          " and ", by, " both have parameters on ranks ", ranks,
          ", with norms of ", norm_of[ranks], " and ", value,
          ": parameters that stages share on a mesh of all ranks do not "
          "combine with those of a stage; give the stages' parameters on "
          "slices of that mesh, without `over`"));
    }
    norm_of[ranks] = value;
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
