// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/dtensor/row_exchange.h"
#include "crosshatch/verify/job_log.h"

namespace crosshatch::verify {
namespace {

using Kind = LoggedEvent::Kind;

/// What a rank issues to one of its groups.
struct Issued {
  std::vector<int64_t> collectives;
  std::vector<int64_t> exchanges;
};

std::vector<Issued> IssuedTo(const RankLog& log) {
  std::vector<Issued> of_group(log.groups.size());
  for (size_t i = 0; i < log.events.size(); ++i) {
    const LoggedEvent& e = log.events[i];
    const auto event = static_cast<int64_t>(i);
    if (e.kind == Kind::kExchange) {
      of_group[static_cast<size_t>(e.id)].exchanges.push_back(event);
    } else if (e.kind == Kind::kCollective) {
      const int group = log.collectives[static_cast<size_t>(e.id)].group;
      of_group[static_cast<size_t>(group)].collectives.push_back(event);
    }
  }
  return of_group;
}

int64_t At(const std::vector<int64_t>& counts, size_t i) {
  return i < counts.size() ? counts[i] : 0;
}

/// Returns what differs between the collectives of member `me` and `other` of a
/// group, or "".
std::string Difference(const LoggedCollective& a, int me,
                       const LoggedCollective& b, int other) {
  if (a.kind != b.kind) return "the kind differs";
  if (a.label != b.label) return "the label differs";
  if (a.dtype != b.dtype) {
    return absl::StrCat("the dtype differs: ", crosshatch::Name(a.dtype),
                        " and ", crosshatch::Name(b.dtype));
  }
  if (IsReduction(a.kind) && a.op != b.op) return "the reduction differs";
  if (a.scale != b.scale) {
    return absl::StrCat("the scale differs: ", a.scale, " and ", b.scale);
  }
  if (a.root != b.root)
    return absl::StrCat("the root differs: ", a.root, " and ", b.root);
  const auto counts = [](const char* what, int64_t x, int64_t y) {
    return x == y ? "" : absl::StrCat(what, ": ", x, " and ", y, " elements");
  };
  const auto m = static_cast<size_t>(me);
  const auto o = static_cast<size_t>(other);
  switch (a.kind) {
    case CollectiveKind::kAllGather:
      return counts("what the first receives and the second sends",
                    At(a.received, o), At(b.sent, 0));
    case CollectiveKind::kReduceScatter:
      return counts("what the first sends and the second receives",
                    At(a.sent, o), At(b.received, 0));
    case CollectiveKind::kAllToAll:
      // The router's numbers are values, which a dry run does not have.
      if (a.label == kAllToAllRows) return "";
      return counts("what the first sends and the second receives",
                    At(a.sent, o), At(b.received, m));
    case CollectiveKind::kAllReduce:
      return counts("counts differ", At(a.sent, 0), At(b.sent, 0));
    case CollectiveKind::kBroadcast:
      return counts("counts differ",
                    me == a.root ? At(a.sent, 0) : At(a.received, 0),
                    other == b.root ? At(b.sent, 0) : At(b.received, 0));
    case CollectiveKind::kBarrier:
      break;
  }
  return "";
}

class Matcher {
 public:
  explicit Matcher(const JobLog& job) : job_(job) {
    for (const RankLog& log : job.logs) issued_.push_back(IssuedTo(log));
  }

  std::vector<Finding> Run() {
    for (const RankLog& log : job_.logs) {
      for (size_t g = 0; g < log.groups.size(); ++g) {
        const LoggedGroup& group = log.groups[g];
        for (size_t m = 0; m < group.world_ranks.size(); ++m) {
          Compare(log, static_cast<int>(g), group.world_ranks[m],
                  static_cast<int>(m));
        }
      }
    }
    return std::move(findings_);
  }

 private:
  void Compare(const RankLog& log, int group, int rank, int member) {
    const LoggedGroup& g = log.groups[static_cast<size_t>(group)];
    if (rank == log.rank) return;
    const RankLog& other = job_.LogOf(rank);
    const std::optional<int> there = job_.GroupOf(log, group, rank);
    const GroupKey key = {g.name, g.world_ranks, g.stream};
    const std::vector<int64_t>& mine = IssuedBy(log, group).collectives;
    if (!there.has_value()) {
      if (mine.empty() && IssuedBy(log, group).exchanges.empty()) return;
      Add({.kind = Finding::Kind::kMismatch,
           .first = {log.rank, mine.empty() ? -1 : mine[0]},
           .second = {rank, -1},
           .message =
               absl::StrCat("rank ", rank, " makes no ", Describe(key), " on ",
                            g.stream, ", which rank ", log.rank, " uses"),
           .missing = "the group on the second rank"},
          log, group, other, -1);
      return;
    }
    const std::vector<int64_t>& theirs = IssuedBy(other, *there).collectives;
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      if (i >= mine.size() || i >= theirs.size()) {
        const bool lacks = i >= theirs.size();
        Add({.kind = Finding::Kind::kMismatch,
             .first = {log.rank, lacks ? mine[i] : -1},
             .second = {rank, lacks ? -1 : theirs[i]},
             .message = absl::StrCat(
                 Describe(key), ": rank ", lacks ? log.rank : rank,
                 " issues as collective #", i, " ",
                 lacks ? log.Describe(mine[i]) : other.Describe(theirs[i]),
                 ", and rank ", lacks ? rank : log.rank, " issues only ", i),
             .missing = "the collective on the other rank"},
            log, group, other, *there);
        return;
      }
      const std::string difference =
          Difference(CollectiveAt(log, mine[i]), g.member,
                     CollectiveAt(other, theirs[i]), member);
      if (difference.empty()) continue;
      Add({.kind = Finding::Kind::kMismatch,
           .first = {log.rank, mine[i]},
           .second = {rank, theirs[i]},
           .message = absl::StrCat(
               Describe(key), ", collective #", i, ": rank ", log.rank,
               " issues ", log.Describe(mine[i]), " and rank ", rank, " ",
               other.Describe(theirs[i]), "; ", difference),
           .missing = "the same collective on both ranks"},
          log, group, other, *there);
      return;
    }
    CompareExchanges(log, group, other, rank, *there);
  }

  void CompareExchanges(const RankLog& log, int group, const RankLog& other,
                        int rank, int there) {
    const std::vector<int64_t>& mine = IssuedBy(log, group).exchanges;
    const std::vector<int64_t>& theirs = IssuedBy(other, there).exchanges;
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      const int64_t a = i < mine.size() ? mine[i] : -1;
      const int64_t b = i < theirs.size() ? theirs[i] : -1;
      if (a >= 0 && b >= 0 && Text(log, a) == Text(other, b)) continue;
      Add({.kind = Finding::Kind::kMismatch,
           .first = {log.rank, a},
           .second = {rank, b},
           .message = absl::StrCat("rank ", log.rank, " calls ",
                                   a < 0 ? "no more exchange" : log.Describe(a),
                                   " and rank ", rank, " ",
                                   b < 0 ? "none" : other.Describe(b)),
           .missing = "the same exchange on both ranks"},
          log, group, other, there);
      return;
    }
  }

  const Issued& IssuedBy(const RankLog& log, int group) const {
    return issued_[static_cast<size_t>(&log - job_.logs.data())]
                  [static_cast<size_t>(group)];
  }
  static const std::string& Text(const RankLog& log, int64_t event) {
    return log.texts[static_cast<size_t>(
        log.events[static_cast<size_t>(event)].text)];
  }
  static const LoggedCollective& CollectiveAt(const RankLog& log,
                                              int64_t event) {
    return log.collectives[static_cast<size_t>(
        log.events[static_cast<size_t>(event)].id)];
  }

  /// Reports two logs' groups once.
  void Add(Finding finding, const RankLog& a, int group_a, const RankLog& b,
           int group_b) {
    auto first = std::pair(&a, group_a);
    auto second = std::pair(&b, group_b);
    if (second < first) std::swap(first, second);
    if (reported_.insert({first, second}).second) {
      findings_.push_back(std::move(finding));
    }
  }

  const JobLog& job_;
  std::vector<std::vector<Issued>> issued_;  ///< By log and group.
  std::vector<Finding> findings_;
  std::set<
      std::pair<std::pair<const RankLog*, int>, std::pair<const RankLog*, int>>>
      reported_;
};

}  // namespace

std::vector<Finding> CheckMatching(const JobLog& job) {
  return Matcher(job).Run();
}

}  // namespace crosshatch::verify
