// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/failure_message.h"

#include <string>

#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {

Failure ToMessage(const FailureNotice& notice) {
  Failure message;
  message.mutable_world_ranks()->Assign(notice.world_ranks.begin(),
                                        notice.world_ranks.end());
  message.set_of_group(notice.of_group);
  message.set_process_lost(notice.process_lost);
  message.set_cut_off(notice.cut_off);
  message.set_code(static_cast<int>(notice.error.code()));
  message.set_text(std::string(BoundedError(notice.error).message()));
  return message;
}

FailureNotice ToNotice(const Failure& message) {
  const auto code = static_cast<absl::StatusCode>(message.code());
  return {.world_ranks = {message.world_ranks().begin(),
                          message.world_ranks().end()},
          .of_group = message.of_group(),
          .process_lost = message.process_lost(),
          .cut_off = message.cut_off(),
          .error = absl::Status(
              code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
              message.text())};
}

}  // namespace crosshatch::coordination
