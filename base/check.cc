// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "crosshatch/base/check_failure_handler.h"
#include "crosshatch/base/error_context.h"

namespace crosshatch {
namespace {

// Held during a call of the handler.
std::mutex handler_mutex;
std::atomic<bool> has_handler = false;
CheckFailureHandler::Handle& Handler() {
  static CheckFailureHandler::Handle& handler =
      *new CheckFailureHandler::Handle;
  return handler;
}

// Never reset, because the process ends with the first check that fails.
std::atomic<bool> has_failed = false;
thread_local bool fails_here = false;
// The text to print if describing the error context fails in turn.
thread_local const std::string* unprinted = nullptr;

void Print(const std::string& text) {
  // One write, so that no other output comes in between.
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

CheckFailureHandler::CheckFailureHandler(Handle handle) {
  std::lock_guard lock(handler_mutex);
  Handler() = std::move(handle);
  has_handler = true;
}

CheckFailureHandler::~CheckFailureHandler() {
  has_handler = false;
  std::lock_guard lock(handler_mutex);
  Handler() = nullptr;
}

namespace internal {

CheckFailure::CheckFailure(const char* file, int line, const char* expression) {
  message_ << file << ":" << line << ": check failed: " << expression << " ";
}

CheckFailure::~CheckFailure() {
  if (fails_here) {
    if (unprinted != nullptr) Print(*unprinted + "\n");
    std::abort();
  }
  fails_here = true;
  if (has_failed.exchange(true)) {
    // Ranks of one program usually fail at the same check. The first one prints
    // and ends the process, unless it waits for something that this thread
    // holds.
    std::this_thread::sleep_for(std::chrono::seconds(10));
    std::abort();
  }
  std::string text = message_.str();
  const bool is_handled = has_handler;
  if (is_handled) {
    unprinted = &text;
  } else {
    Print(text + "\n");
  }
  std::string context = ErrorContext::DescribeCurrent();
  if (!context.empty()) context = "  at " + context;
  if (!is_handled) {
    if (!context.empty()) Print(context + "\n");
    std::abort();
  }
  if (!context.empty()) text += "\n" + context;
  bool is_printed = false;
  {
    std::lock_guard lock(handler_mutex);
    is_printed = Handler() && Handler()(text);
  }
  if (!is_printed) Print(text + "\n");
  std::abort();
}

}  // namespace internal
}  // namespace crosshatch
