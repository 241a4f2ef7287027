// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/expect.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

// Thread-local, because a rank's checks run on the thread of its body.
thread_local CheckScope* innermost = nullptr;

}  // namespace

CheckScope::CheckScope() : outer_(std::exchange(innermost, this)) {}

CheckScope::~CheckScope() { innermost = outer_; }

void CheckScope::Add(FailedCheck failed) {
  if (failed_.size() < kMostKept) {
    failed_.push_back(std::move(failed));
  } else {
    ++left_out_;
  }
}

std::vector<FailedCheck> CheckScope::Take() {
  if (const int64_t left_out = std::exchange(left_out_, 0); left_out > 0) {
    FailedCheck last = failed_.back();
    last.message = absl::StrCat("(and ", left_out, " more failed after this)");
    failed_.push_back(std::move(last));
  }
  return std::exchange(failed_, {});
}

namespace internal {

void ReportCheck::operator=(const ::testing::Message& streamed) {
  if (const std::string text = streamed.GetString(); !text.empty()) {
    absl::StrAppend(&failed_.message, "\n", text);
  }
  if (innermost != nullptr) {
    innermost->Add(std::move(failed_));
  } else {
    ADD_FAILURE_AT(failed_.file, failed_.line) << failed_.message;
  }
}

::testing::AssertionResult CheckTrue(const char* text, bool value,
                                     bool expected) {
  if (value == expected) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "Value of: " << text
         << "\nExpected: " << (expected ? "true" : "false")
         << "\n  Actual: " << (value ? "true" : "false");
}

::testing::AssertionResult CheckOk(const char* text,
                                   const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "Value of: " << text
         << "\nExpected: OK\n  Actual: " << status.ToString();
}

}  // namespace internal
}  // namespace crosshatch
