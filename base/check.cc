// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "crosshatch/base/place.h"
#include "crosshatch/base/tell_of_check.h"

namespace crosshatch::internal {

std::atomic<bool (*)(const std::string& text)> tell_of_check = nullptr;

namespace {

// The process ends with the first check that fails; nobody resets it.
std::atomic<bool> has_failed = false;
thread_local bool fails_here = false;
// What is to be told once the place is described.
thread_local const std::string* untold = nullptr;

void Print(const std::string& text) {
  // One write, so that nothing else comes between.
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

CheckFailure::CheckFailure(const char* file, int line, const char* expression) {
  message_ << file << ":" << line << ": check failed: " << expression << " ";
}

CheckFailure::~CheckFailure() {
  if (fails_here) {
    // The description of the place failed: what was said before has to do.
    if (untold != nullptr) Print(*untold + "\n");
    std::abort();
  }
  fails_here = true;
  if (has_failed.exchange(true)) {
    // Ranks that run one program fail alike. The first one speaks for all, and
    // ends the process, unless this thread has what it waits for.
    std::this_thread::sleep_for(std::chrono::seconds(10));
    std::abort();
  }
  std::string text = message_.str();
  auto* const tell = tell_of_check.load();
  if (tell == nullptr) {
    Print(text + "\n");
  } else {
    untold = &text;
  }
  std::string place = Place::Here();
  if (!place.empty()) place = "  at " + place;
  if (tell == nullptr) {
    if (!place.empty()) Print(place + "\n");
    std::abort();
  }
  if (!place.empty()) text += "\n" + place;
  if (!tell(text)) Print(text + "\n");
  std::abort();
}

}  // namespace crosshatch::internal
