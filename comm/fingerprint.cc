// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/route.h"

namespace crosshatch {
namespace {

/// Enough to see the pattern; 64 ranks could have 4,096 lines.
constexpr int kMaxCountDifferences = 4;
/// The most members whose collectives a message describes.
constexpr size_t kMaxMembers = 8;

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool SameFields(const Fingerprint& a, const Fingerprint& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.dtype == b.dtype &&
         a.reduce_op == b.reduce_op && SameBits(a.scale, b.scale) &&
         a.root == b.root && a.label == b.label;
}

/// Calls differ(sender, elements sent, receiver, elements expected) for each
/// pair of members, by index, whose counts do not fit, until it returns false.
template <typename F>
void ForEachCountDifference(absl::Span<const Fingerprint* const> members,
                            F&& differ) {
  const int n = static_cast<int>(members.size());
  for (int receiver = 0; receiver < n; ++receiver) {
    const Fingerprint& to = *members[receiver];
    for (int sender = 0; sender < n; ++sender) {
      // A member's own lists are checked at issue; a root may omit one.
      if (sender == receiver) continue;
      const Fingerprint& from = *members[sender];
      const Route route = RouteOf(to.kind, to.root, sender, receiver);
      if (!route.exists()) continue;
      const int64_t sent = from.send[route.send];
      const int64_t expected = to.recv[route.recv];
      if (sent != expected && !differ(sender, sent, receiver, expected)) return;
    }
  }
}

/// Describes collectives in one message, each with its `about` in brackets
/// unless the message contains it already.
class Describer {
 public:
  /// \param before the message so far.
  explicit Describer(absl::string_view before = "") : printed_(before) {}

  std::string operator()(const Fingerprint& f) {
    if (f.about == nullptr || absl::StrContains(printed_, *f.about)) {
      return Describe(f);
    }
    absl::StrAppend(&printed_, *f.about, "\n");
    return DescribeInFull(f);
  }

 private:
  std::string printed_;
};

/// Builds the text of a mismatch.
class Difference {
 public:
  Difference(absl::Span<const int> world_ranks,
             absl::Span<const Fingerprint* const> members)
      : world_ranks_(world_ranks), members_(members) {}

  std::string Text() {
    Field("sequence number",
          [](const Fingerprint& f) { return absl::StrCat("#", f.sequence); });
    Field("kind", [](const Fingerprint& f) { return Name(f.kind); });
    Field("label",
          [](const Fingerprint& f) { return absl::StrCat("'", f.label, "'"); });
    Field("dtype", [](const Fingerprint& f) { return Name(f.dtype); });
    Field("reduce op", [](const Fingerprint& f) {
      return std::string(ToString(f.reduce_op));
    });
    Field("scale", [](const Fingerprint& f) {
      return absl::StrFormat("%.17g", f.scale);
    });
    Field("root", [](const Fingerprint& f) { return absl::StrCat(f.root); });
    if (!fields_differ_) Counts();
    Describer describe;
    for (size_t i = 0; i < members_.size() && i < kMaxMembers; ++i) {
      absl::StrAppend(&text_, "\n  rank ", world_ranks_[i], " issued ",
                      describe(*members_[i]), ", sends ",
                      Join(members_[i]->send), ", receives ",
                      Join(members_[i]->recv));
    }
    return std::move(text_);
  }

 private:
  static std::string Join(absl::Span<const int64_t> counts) {
    if (counts.empty()) return "nothing";
    return absl::StrCat("[", absl::StrJoin(counts, ", "), "]");
  }

  /// Appends the ranks of each value, if the values differ.
  template <typename F>
  void Field(const char* name, F&& value_of) {
    std::vector<std::pair<std::string, std::vector<int>>> groups;
    for (size_t i = 0; i < members_.size(); ++i) {
      const std::string value = value_of(*members_[i]);
      auto it = groups.begin();
      while (it != groups.end() && it->first != value) ++it;
      if (it == groups.end()) it = groups.insert(it, {value, {}});
      it->second.push_back(world_ranks_[i]);
    }
    if (groups.size() == 1) return;
    fields_differ_ = true;
    absl::StrAppend(&text_, "\n  ", name, ":");
    const char* separator = " ";
    for (const auto& [value, ranks] : groups) {
      absl::StrAppend(&text_, separator, value, " on rank",
                      ranks.size() > 1 ? "s " : " ",
                      absl::StrJoin(ranks, ", "));
      separator = "; ";
    }
  }

  void Counts() {
    int found = 0;
    ForEachCountDifference(members_, [&](int sender, int64_t sent, int receiver,
                                         int64_t expected) {
      absl::StrAppend(&text_, "\n  count: rank ", world_ranks_[sender],
                      " sends ", sent, " elements to rank ",
                      world_ranks_[receiver], ", which expects ", expected);
      return ++found < kMaxCountDifferences;
    });
  }

  const absl::Span<const int> world_ranks_;
  const absl::Span<const Fingerprint* const> members_;
  bool fields_differ_ = false;
  std::string text_;
};

}  // namespace

void Fingerprint::Assign(const Collective& collective, int64_t new_sequence) {
  sequence = new_sequence;
  kind = collective.kind;
  dtype = collective.dtype;
  reduce_op = collective.reduce_op;
  scale = collective.scale;
  root = collective.root;
  label = collective.label;
  about = collective.about;
  send.clear();
  for (const SegmentList& list : collective.send) {
    send.push_back(NumElements(list));
  }
  recv.clear();
  for (const SegmentList& list : collective.recv) {
    recv.push_back(NumElements(list));
  }
}

std::string Describe(const Fingerprint& f) {
  if (f.sequence < 0) return f.label;
  std::string text =
      absl::StrCat(Name(f.kind), " #", f.sequence, " '", f.label, "'");
  if (f.kind != CollectiveKind::kBarrier) {
    absl::StrAppend(&text, " (", Name(f.dtype));
    if (IsReduction(f.kind)) {
      absl::StrAppend(&text, ", ", ToString(f.reduce_op));
      if (f.scale != 1.0) absl::StrAppend(&text, " times ", f.scale);
    }
    if (f.kind == CollectiveKind::kBroadcast) {
      absl::StrAppend(&text, ", root ", f.root);
    }
    absl::StrAppend(&text, ")");
  }
  return text;
}

std::string DescribeInFull(const Fingerprint& f) {
  std::string text = Describe(f);
  if (f.about != nullptr) absl::StrAppend(&text, " [", *f.about, "]");
  return text;
}

std::string DescribeArrivals(absl::Span<const int> world_ranks,
                             absl::Span<const Fingerprint* const> came,
                             absl::string_view before) {
  Describer describe(before);
  std::vector<std::string> texts;
  std::vector<int> others;
  std::vector<int> missing;
  for (size_t i = 0; i < came.size(); ++i) {
    if (came[i] == nullptr) {
      missing.push_back(world_ranks[i]);
    } else if (texts.size() == kMaxMembers) {
      others.push_back(world_ranks[i]);
    } else {
      texts.push_back(absl::StrCat("rank ", world_ranks[i], " came to ",
                                   describe(*came[i])));
    }
  }
  if (!others.empty()) texts.push_back(DescribeRanks(others) + " came, too");
  if (missing.size() > kMaxMembers) {
    texts.push_back(DescribeRanks(missing) + " did not come");
  } else {
    for (const int rank : missing) {
      texts.push_back(absl::StrCat("rank ", rank, " did not come"));
    }
  }
  return absl::StrJoin(texts, ", ");
}

absl::Status CheckAgreement(const std::string& group,
                            absl::Span<const int> world_ranks,
                            absl::Span<const Fingerprint* const> members) {
  bool agree = true;
  for (const Fingerprint* member : members) {
    agree = agree && SameFields(*members[0], *member);
  }
  if (agree) {
    ForEachCountDifference(
        members, [&](int, int64_t, int, int64_t) { return agree = false; });
  }
  if (agree) return absl::OkStatus();
  for (size_t i = 1; members[0]->sequence < 0 && i < members.size(); ++i) {
    if (SameFields(*members[0], *members[i])) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks of ", group, " disagree: rank ", world_ranks[0],
                     " came to ", Describe(*members[0]), ", rank ",
                     world_ranks[i], " to ", Describe(*members[i])));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("ranks of ", group,
                   " disagree:", Difference(world_ranks, members).Text()));
}

}  // namespace crosshatch
