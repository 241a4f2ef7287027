// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/late_wait.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch::internal {
namespace {

/// The maximum number of other waits that a message names.
constexpr size_t kOthers = 3;

/// Returns how likely wait `self` is the root cause.
int Rank(absl::Span<const LateWait> late, size_t self) {
  if (late[self].met) return 2;
  for (size_t i = 0; i < late.size(); ++i) {
    if (i == self) continue;
    for (int rank : late[self].missing) {
      if (std::find(late[i].waiting.begin(), late[i].waiting.end(), rank) !=
          late[i].waiting.end()) {
        return 0;
      }
    }
  }
  return 1;
}

}  // namespace

size_t RootOf(absl::Span<const LateWait> late) {
  CH_CHECK(!late.empty());
  size_t root = 0;
  int rank = Rank(late, 0);
  for (size_t i = 1; i < late.size(); ++i) {
    const int other = Rank(late, i);
    if (other < rank || (other == rank && late[i].age <= late[root].age)) {
      continue;
    }
    root = i;
    rank = other;
  }
  return root;
}

std::string DescribeLate(absl::Span<const LateWait> late, size_t root,
                         absl::Duration timeout) {
  std::string text =
      absl::StrCat(late[root].group, " timed out after ",
                   absl::FormatDuration(timeout), ": ", late[root].text);
  size_t others = 0;
  for (size_t i = 0; i < late.size(); ++i) {
    if (i == root) continue;
    if (others++ >= kOthers) continue;
    absl::StrAppend(&text, "; besides, ", late[i].group,
                    " waits: ", late[i].text);
  }
  if (others > kOthers) {
    absl::StrAppend(&text, "; and ", others - kOthers, " more");
  }
  return text;
}

}  // namespace crosshatch::internal
