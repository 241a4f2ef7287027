// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_EXPECT_H_
#define CROSSHATCH_TESTING_EXPECT_H_

/// \file
/// Checks that a rank makes. GoogleTest's own would be lost, or say nothing of
/// the rank, where a rank is a thread or a process of its own; these collect
/// what is wrong with the rank, and whoever runs the ranks (ranks.h) reports it
/// by rank on the test's thread.
///
///     CH_EXPECT_EQ(LayoutOf(y), layout) << "step " << step;
///     CH_EXPECT_THAT(message, HasSubstr("tp"));
///     CH_EXPECT_OK(Backward(loss));
///
/// A rank goes on after a failed check, and so stays in step with its peers.
/// What cannot go on returns a status (CH_RETURN_IF_ERROR), which ends the job.
/// Outside of a rank they are GoogleTest's, so that a function that both a rank
/// and the test's thread call can check as well.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {

/// A failed check and its source location.
struct FailedCheck {
  const char* file;
  int line;
  std::string message;

  bool operator==(const FailedCheck&) const = default;
};

/// Collects the failed checks of this thread during its lifetime. An inner
/// scope takes precedence.
class CheckScope final {
 public:
  /// Bounds the report of a sweep that fails everywhere.
  static constexpr size_t kMostKept = 20;

  CheckScope();
  ~CheckScope();
  CheckScope(const CheckScope&) = delete;
  CheckScope& operator=(const CheckScope&) = delete;

  void Add(FailedCheck failed);
  /// Returns and clears the failures in order. The last one reports how many
  /// were omitted.
  std::vector<FailedCheck> Take();

 private:
  CheckScope* const outer_;
  std::vector<FailedCheck> failed_;
  int64_t left_out_ = 0;
};

namespace internal {

class CheckOutcome final {
 public:
  explicit CheckOutcome(const ::testing::AssertionResult& result)
      : result_(result) {}
  /// Returns whether the check failed, on the first call only.
  bool FailsOnce() { return !result_ && !std::exchange(told_, true); }
  const char* message() const { return result_.failure_message(); }

 private:
  const ::testing::AssertionResult result_;
  bool told_ = false;
};

/// Collects the text streamed to a failed check.
class ReportCheck final {
 public:
  ReportCheck(const char* file, int line, const char* failure)
      : failed_{file, line, failure} {}
  /// Passes the failure to the thread's scope or, without one, to GoogleTest.
  void operator=(const ::testing::Message& streamed);

 private:
  FailedCheck failed_;
};

template <typename Value, typename Matcher>
::testing::AssertionResult CheckThat(const char* text, const Value& value,
                                     const Matcher& matcher) {
  const auto matches = ::testing::SafeMatcherCast<const Value&>(matcher);
  if (matches.Matches(value)) return ::testing::AssertionSuccess();
  ::testing::StringMatchResultListener listener;
  matches.MatchAndExplain(value, &listener);
  return ::testing::AssertionFailure()
         << "Value of: " << text
         << "\nExpected: " << ::testing::DescribeMatcher<const Value&>(matcher)
         << "\n  Actual: " << ::testing::PrintToString(value)
         << (listener.str().empty() ? "" : ", ") << listener.str();
}

::testing::AssertionResult CheckTrue(const char* text, bool value,
                                     bool expected);

::testing::AssertionResult CheckOk(const char* text,
                                   const absl::Status& status);
template <typename T>
::testing::AssertionResult CheckOk(const char* text,
                                   const absl::StatusOr<T>& value) {
  return CheckOk(text, value.status());
}

}  // namespace internal
}  // namespace crosshatch

// A loop of at most one iteration, because an `if` would capture a caller's
// `else`.
#define CH_INTERNAL_CHECK(result)                               \
  for (::crosshatch::internal::CheckOutcome ch_outcome(result); \
       ch_outcome.FailsOnce();)                                 \
  ::crosshatch::internal::ReportCheck(                          \
      __FILE__, __LINE__, ch_outcome.message()) = ::testing::Message()

#define CH_EXPECT_THAT(value, matcher) \
  CH_INTERNAL_CHECK(::crosshatch::internal::CheckThat(#value, value, matcher))
#define CH_EXPECT_EQ(value, expected) \
  CH_EXPECT_THAT(value, ::testing::Eq(expected))
#define CH_EXPECT_NE(value, other) CH_EXPECT_THAT(value, ::testing::Ne(other))
#define CH_EXPECT_LT(value, bound) CH_EXPECT_THAT(value, ::testing::Lt(bound))
#define CH_EXPECT_LE(value, bound) CH_EXPECT_THAT(value, ::testing::Le(bound))
#define CH_EXPECT_GT(value, bound) CH_EXPECT_THAT(value, ::testing::Gt(bound))
#define CH_EXPECT_GE(value, bound) CH_EXPECT_THAT(value, ::testing::Ge(bound))
#define CH_EXPECT_NEAR(value, expected, most) \
  CH_EXPECT_THAT(static_cast<double>(value),  \
                 ::testing::DoubleNear(expected, most))
#define CH_EXPECT_TRUE(value) \
  CH_INTERNAL_CHECK(          \
      ::crosshatch::internal::CheckTrue(#value, bool(value), true))
#define CH_EXPECT_FALSE(value) \
  CH_INTERNAL_CHECK(           \
      ::crosshatch::internal::CheckTrue(#value, bool(value), false))
/// Checks an absl::Status or an absl::StatusOr.
#define CH_EXPECT_OK(status) \
  CH_INTERNAL_CHECK(::crosshatch::internal::CheckOk(#status, status))
/// Fails; << adds the reason.
#define CH_ADD_FAILURE() \
  CH_INTERNAL_CHECK(::testing::AssertionFailure() << "Failed")

#endif  // CROSSHATCH_TESTING_EXPECT_H_
