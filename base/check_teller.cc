// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check_teller.h"

#include <mutex>
#include <utility>

#include "crosshatch/base/tell_of_check.h"

namespace crosshatch {
namespace {

// Held while it tells.
std::mutex mutex;
CheckTeller::Tell& Told() {
  static CheckTeller::Tell& tell = *new CheckTeller::Tell;
  return tell;
}

bool TellOfCheck(const std::string& text) {
  std::lock_guard lock(mutex);
  return Told() && Told()(text);
}

}  // namespace

CheckTeller::CheckTeller(Tell tell) {
  std::lock_guard lock(mutex);
  Told() = std::move(tell);
  internal::tell_of_check = TellOfCheck;
}

CheckTeller::~CheckTeller() {
  internal::tell_of_check = nullptr;
  std::lock_guard lock(mutex);
  Told() = nullptr;
}

}  // namespace crosshatch
