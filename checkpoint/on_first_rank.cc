// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/on_first_rank.h"

#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch::checkpoint {
namespace {

// Far below any timeout that rank threads of a busy machine could keep, and far
// above what a meeting costs.
constexpr std::chrono::milliseconds kBetweenMeetings(20);

// What the first rank says at a meeting: that it is busy, or a status.
constexpr char kBusy[] = "busy";

std::string Encode(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), " ",
                      std::string(status.message()));
}

absl::Status Decode(const std::string& text, int first_rank) {
  const size_t space = text.find(' ');
  int code = 0;
  CH_CHECK(absl::SimpleAtoi(text.substr(0, space), &code)) << text;
  if (code == 0) return absl::OkStatus();
  return absl::Status(
      static_cast<absl::StatusCode>(code),
      absl::StrCat("on rank ", first_rank, ": ", text.substr(space + 1)));
}

}  // namespace

absl::Status OnFirstRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work) {
  if (comm.rank() != 0) {
    while (true) {
      absl::StatusOr<std::vector<std::string>> said = comm.Exchange("", label);
      if (!said.ok()) return said.status();
      if ((*said)[0] != kBusy) return Decode((*said)[0], comm.world_ranks()[0]);
    }
  }
  // Where no thread can be had the work runs here, below, when it is asked for.
  std::future<absl::Status> done =
      std::async(std::launch::async | std::launch::deferred, work);
  while (done.wait_for(kBetweenMeetings) == std::future_status::timeout) {
    const absl::Status met = comm.Exchange(kBusy, label).status();
    if (met.ok()) continue;
    const absl::Status status = done.get();
    return status.ok() ? met : status;
  }
  const absl::Status status = done.get();
  const absl::Status met = comm.Exchange(Encode(status), label).status();
  return status.ok() ? met : status;
}

}  // namespace crosshatch::checkpoint
