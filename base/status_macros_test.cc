// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/status_macros.h"

#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

absl::Status Pass(const absl::Status& status, bool& went_on) {
  CH_RETURN_IF_ERROR(status);
  went_on = true;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnIfError) {
  bool went_on = false;
  EXPECT_EQ(Pass(absl::AbortedError("stop"), went_on),
            absl::AbortedError("stop"));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(Pass(absl::OkStatus(), went_on).ok());
  EXPECT_TRUE(went_on);
}

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Add(int a, int b) {
  CH_ASSIGN_OR_RETURN(std::unique_ptr<int> first, Make(a));
  std::unique_ptr<int> second;
  CH_ASSIGN_OR_RETURN(second, Make(b));
  return *first + *second;
}

TEST(StatusMacrosTest, AssignOrReturnMovesTheValue) {
  EXPECT_EQ(Add(2, 3).value(), 5);
  EXPECT_EQ(Add(2, -3).status(), absl::OutOfRangeError("negative"));
  EXPECT_EQ(Add(-2, 3).status(), absl::OutOfRangeError("negative"));
}

// Expands to several uses of the macro on one line.
#define ADD_ALL(sum, a, b)                            \
  CH_ASSIGN_OR_RETURN(const auto ch_test_a, Make(a)); \
  CH_ASSIGN_OR_RETURN(const auto ch_test_b, Make(b)); \
  const int sum = *ch_test_a + *ch_test_b

absl::StatusOr<int> AddInOneLine(int a, int b) {
  ADD_ALL(sum, a, b);
  return sum;
}

TEST(StatusMacrosTest, AssignOrReturnTwiceInOneLine) {
  EXPECT_EQ(AddInOneLine(2, 3).value(), 5);
  EXPECT_EQ(AddInOneLine(2, -3).status(), absl::OutOfRangeError("negative"));
}

absl::StatusOr<std::map<int, int>> MakeMap(int a, int b) {
  return std::map<int, int>{{a, b}};
}

absl::StatusOr<size_t> SizeOfMap() {
  CH_ASSIGN_OR_RETURN(const auto map, MakeMap(1, 2));
  return map.size();
}

TEST(StatusMacrosTest, AssignOrReturnTakesExpressionsWithCommas) {
  EXPECT_EQ(SizeOfMap().value(), 1u);
}

}  // namespace
}  // namespace crosshatch
