// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/agreed_options.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace crosshatch {

std::string AgreedText(const RunOptions& options) {
  const bool is_cuda = options.device == Device::Kind::kCuda;
  std::string data =
      absl::StrCat("--device=", is_cuda ? "cuda" : "cpu",
                   options.nccl.deterministic ? " --deterministic" : "");
  if (is_cuda) {
    absl::StrAppend(&data, options.cuda.tf32 ? " --tf32" : "",
                    ", NCCL's own collectives from ",
                    options.nccl.least_collective_bytes, " bytes on");
  }
  std::vector<std::string> all = {data};
  if (options.transport != DataTransport::kAuto) {
    all.push_back(options.transport == DataTransport::kUcx ? "--transport=ucx"
                                                           : "--transport=mpi");
  }
  all.insert(all.end(), options.agreed.begin(), options.agreed.end());
  // A line each, so what is in them must have none.
  for (std::string& option : all) option = absl::CEscape(option);
  return absl::StrJoin(all, "\n");
}

absl::Status CheckAgreed(const std::string& mine, const std::string& of_first) {
  if (mine == of_first) return absl::OkStatus();
  std::vector<std::string> here = absl::StrSplit(mine, '\n');
  std::vector<std::string> there = absl::StrSplit(of_first, '\n');
  const size_t count = std::max(here.size(), there.size());
  here.resize(count, "nothing more");
  there.resize(count, "nothing more");
  std::vector<std::string> differ_here;
  std::vector<std::string> differ_there;
  for (size_t i = 0; i < count; ++i) {
    if (here[i] == there[i]) continue;
    differ_here.push_back(here[i]);
    differ_there.push_back(there[i]);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "it runs with ", absl::StrJoin(differ_here, " "), ", and rank 0 with ",
      absl::StrJoin(differ_there, " "), ": start all ranks with the same"));
}

}  // namespace crosshatch
