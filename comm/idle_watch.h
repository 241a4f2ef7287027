// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_IDLE_WATCH_H_
#define CROSSHATCH_COMM_IDLE_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace crosshatch::internal {

/// Finds out that a rank computes indefinitely while others, which have
/// finished, wait for it.
/// \threadsafety one thread.
class IdleWatch {
 public:
  /// Called by a watchdog, repeatedly, once another rank has finished.
  /// \param now by the watchdog's clock
  /// \param turns how many collectives and gathers the rank has begun
  /// \param waits whether it is in one
  /// \param others the finished ranks, and their verb, for the message
  /// \error kDeadlineExceeded if the rank has been in none for `timeout`
  absl::Status Look(absl::Duration now, absl::Duration timeout, int64_t turns,
                    bool waits, const std::string& others) {
    if (!since_.has_value() || waits || turns != turns_) {
      since_ = now;
      turns_ = turns;
    }
    if (now - *since_ <= timeout) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("its function goes on, and has been in no collective for ",
                     absl::FormatDuration(timeout), "; ", others, " for it"));
  }

 private:
  /// Since when it has begun nothing, and `turns` at that time.
  std::optional<absl::Duration> since_;
  int64_t turns_ = 0;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_IDLE_WATCH_H_
