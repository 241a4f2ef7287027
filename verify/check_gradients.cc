// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/verify/interval_map.h"
#include "crosshatch/verify/job_log.h"

namespace crosshatch::verify {
namespace {

using Kind = LoggedEvent::Kind;

/// What the bytes of a gradient hold: a sum over ranks, times a factor.
struct Value {
  /// Whether a gradient was written to this memory.
  bool gradient = false;
  bool zero = false;
  /// Of a sum: this rank's part is zeros, so that the factor of the others'
  /// parts is unknown here.
  bool of_zeros = false;
  double factor = 1;
  /// The groups that were summed over, in order.
  std::vector<int> groups;
  /// Why it is no such sum, such as parts that differ; else empty.
  std::string mixed;
  /// The label and event of the last reduction.
  std::string label;
  int64_t event = -1;
  /// The work that added a different part.
  int64_t mixed_by = -1;
};

/// Values by number, so that intervals of memory hold a number. 0 is nothing: a
/// parameter, or memory without a value.
class Values {
 public:
  int NumberOf(const Value& value) {
    const auto [found, is_new] = numbers_.emplace(
        std::tuple(value.gradient, value.zero, value.of_zeros, value.factor,
                   value.groups, value.mixed, value.label),
        static_cast<int>(values_.size()));
    if (is_new) values_.push_back(value);
    return found->second;
  }
  const Value& At(int number) const {
    return values_[static_cast<size_t>(number)];
  }

 private:
  std::vector<Value> values_ = std::vector<Value>(1);
  std::map<std::tuple<bool, bool, bool, double, std::vector<int>, std::string,
                      std::string>,
           int>
      numbers_;
};

class GradientChecker {
 public:
  GradientChecker(const JobLog& job, const RankLog& log,
                  const GradientRule& rule)
      : job_(job), log_(log), rule_(rule), memory_(log.leases.size()) {
    for (const LoggedGroup& group : log.groups) {
      varying_.push_back(Varying(group.world_ranks));
    }
    for (const LoggedCollective& c : log.collectives) {
      if (c.kind != CollectiveKind::kAllGather) continue;
      const std::set<int>& axes = varying_[static_cast<size_t>(c.group)];
      gathered_over_[c.label].insert(axes.begin(), axes.end());
    }
  }

  std::vector<Finding> Run() {
    for (size_t i = 0; i < log_.events.size(); ++i) {
      const LoggedEvent& e = log_.events[i];
      const auto index = static_cast<int64_t>(i);
      if (e.kind == Kind::kWork) Work(index, e);
      if (e.kind == Kind::kCollective) Reduce(index, e);
      if (e.kind == Kind::kRelease) {
        memory_[static_cast<size_t>(e.id)].Clear();
      }
    }
    return std::move(findings_);
  }

 private:
  /// Returns the axes along which the ranks differ.
  std::set<int> Varying(const std::vector<int>& ranks) const {
    std::set<int> axes;
    const auto first = job_.mesh.CoordinateOf(ranks[0]);
    for (const int rank : ranks) {
      const auto at = job_.mesh.CoordinateOf(rank);
      for (int a = 0; a < job_.mesh.ndim(); ++a) {
        const auto i = static_cast<size_t>(a);
        if ((*at)[i] != (*first)[i]) axes.insert(a);
      }
    }
    return axes;
  }
  bool IsOfBatch(int axis) const {
    return std::find(rule_.batch_axes.begin(), rule_.batch_axes.end(), axis) !=
           rule_.batch_axes.end();
  }

  const LoggedLease& LeaseAt(int64_t lease) const {
    return log_.leases[static_cast<size_t>(lease)];
  }
  bool HoldsParameters(int64_t lease) const {
    const MemoryClass c = LeaseAt(lease).memory_class;
    return c == MemoryClass::kParameter || c == MemoryClass::kOptimizerState;
  }
  bool HoldsGradients(int64_t lease) const {
    return LeaseAt(lease).memory_class == MemoryClass::kGradient;
  }

  /// Returns the number of a value of all bytes of the access; 0 if they have
  /// none.
  int Read(const LoggedAccess& access, int64_t event) {
    const int64_t lease = log_.LeaseAt(access.begin);
    if (lease < 0 || HoldsParameters(lease)) return 0;
    int value = 0;
    memory_[static_cast<size_t>(lease)].Visit(
        access.begin, access.end, [&](int64_t, int64_t, const int& other) {
          value = Join(value, other, event, "parts");
        });
    return value;
  }

  /// Returns the sum of two values, or what two neighbours hold.
  int Join(int a, int b, int64_t event, const char* what) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const Value& x = values_.At(a);
    const Value& y = values_.At(b);
    if (y.zero) return a;
    if (x.zero) return b;
    if (x.gradient != y.gradient) return x.gradient ? a : b;
    if (!x.mixed.empty()) return a;
    if (!y.mixed.empty()) return b;
    if (x.groups == y.groups && x.of_zeros != y.of_zeros) {
      return x.of_zeros ? b : a;
    }
    if (x.factor == y.factor && x.groups == y.groups) {
      return x.event >= y.event ? a : b;
    }
    Value mixed = x.event >= y.event ? x : y;
    mixed.mixed = absl::StrCat(what, " that differ: ", Describe(x), ", and ",
                               Describe(y));
    mixed.mixed_by = event;
    return values_.NumberOf(mixed);
  }

  std::string Describe(const Value& value) const {
    std::vector<std::string> over;
    for (const int g : value.groups) {
      const LoggedGroup& group = log_.groups[static_cast<size_t>(g)];
      over.push_back(absl::StrCat(group.name, " (",
                                  DescribeRanks(group.world_ranks), ")"));
    }
    return absl::StrCat(
        over.empty() ? "not reduced"
                     : absl::StrCat("reduced over ", absl::StrJoin(over, ", ")),
        ", times ", value.factor);
  }

  void Work(int64_t index, const LoggedEvent& e) {
    int carried = 0;
    bool carries = false;
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      if (access.writes || !access.carries) continue;
      carries = true;
      int read = Read(access, index);
      const int64_t lease = log_.LeaseAt(access.begin);
      if (read == 0 && lease >= 0 && HoldsGradients(lease)) {
        read = values_.NumberOf(
            {.gradient = true, .mixed = "memory that nothing was written to"});
      }
      if (read != 0 && !values_.At(read).zero) {
        CheckUpdate(index, e, read);
        Value scaled = values_.At(read);
        if (access.factor != 1 && KeepsFactor(e, access)) {
          scaled.factor *= access.factor;
          read = values_.NumberOf(scaled);
        }
      }
      carried = Join(carried, read, index, "a sum of parts");
    }
    int result = carried;
    if (e.zeros) {
      result = values_.NumberOf({.zero = true});
    } else if (!carries || carried == 0) {  // A constant or of parameters.
      result = values_.NumberOf({});
    }
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      if (access.writes) {
        Write(index, access, result, e.accumulates);
      }
    }
  }

  /// Returns whether the output is a gradient too, rather than a temporary of
  /// an optimizer: memory of gradients, or the input itself.
  bool KeepsFactor(const LoggedEvent& e, const LoggedAccess& input) const {
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      if (!access.writes) continue;
      const int64_t lease = log_.LeaseAt(access.begin);
      if (access.begin == input.begin && access.end == input.end) return true;
      return lease >= 0 &&
             (HoldsGradients(lease) ||
              LeaseAt(lease).memory_class == MemoryClass::kCommunication);
    }
    return false;
  }

  void Write(int64_t index, const LoggedAccess& access, int result,
             bool accumulates) {
    const int64_t lease = log_.LeaseAt(access.begin);
    if (lease < 0 || HoldsParameters(lease)) return;
    if (HoldsGradients(lease) && result != 0 && !values_.At(result).zero &&
        !values_.At(result).gradient) {
      Value gradient = values_.At(result);
      gradient.gradient = true;
      result = values_.NumberOf(gradient);
    }
    memory_[static_cast<size_t>(lease)].Visit(
        access.begin, access.end, [&](int64_t, int64_t, int& value) {
          value = accumulates ? Join(value, result, index, "a sum of parts")
                              : result;
        });
  }

  void Reduce(int64_t index, const LoggedEvent& e) {
    const LoggedCollective& c = log_.collectives[static_cast<size_t>(e.id)];
    const LoggedGroup& group = log_.groups[static_cast<size_t>(c.group)];
    const std::set<int>& axes = varying_[static_cast<size_t>(c.group)];
    const bool of_batch = std::any_of(axes.begin(), axes.end(),
                                      [&](int a) { return IsOfBatch(a); });
    const auto sent = [&](bool only_own) {
      int value = 0;
      for (uint32_t i = 0; i < e.num_accesses; ++i) {
        const LoggedAccess& access = log_.accesses[e.first_access + i];
        if (access.writes) continue;
        if (only_own && c.list_of_access[i] != group.member) continue;
        value = Join(value, Read(access, index), index, "parts");
      }
      return value;
    };
    // Of a reduce-scatter, this rank receives only its part. Zeros have the
    // factor of the rest.
    const bool scatters = c.kind == CollectiveKind::kReduceScatter;
    int value = sent(/*only_own=*/scatters);
    if (scatters && value != 0 && values_.At(value).zero) {
      value = sent(/*only_own=*/false);
    }
    if (value != 0 && IsReduction(c.kind)) {
      Value reduced = values_.At(value);
      reduced.of_zeros = reduced.of_zeros || reduced.zero;
      reduced.zero = false;  // Other ranks may have a part.
      // Sums over other axes belong to the layouts of tensors.
      const bool sums_batch = of_batch || axes.empty();
      if (sums_batch && !axes.empty()) reduced.groups.push_back(c.group);
      // FSDP over one rank of the batch, and over "tp", names parameters too.
      if (sums_batch || gathered_over_.count(c.label) > 0) {
        reduced.label = c.label;
        reduced.event = index;
      }
      if (of_batch && c.op != ReduceOp::kSum && c.op != ReduceOp::kAvg &&
          reduced.mixed.empty()) {
        reduced.mixed = absl::StrCat("reduced by ", ToString(c.op));
        reduced.mixed_by = index;
      }
      reduced.factor *= c.scale;
      if (c.op == ReduceOp::kAvg) {
        reduced.factor /= static_cast<double>(group.world_ranks.size());
      }
      value = values_.NumberOf(reduced);
    }
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      if (access.writes) Write(index, access, value, /*accumulates=*/false);
    }
  }

  /// Checks a read of `number` by `e`, if `e` updates parameters.
  void CheckUpdate(int64_t index, const LoggedEvent& e, int number) {
    const Value& value = values_.At(number);
    if (!value.gradient) return;
    int64_t target = -1;
    for (uint32_t i = 0; i < e.num_accesses; ++i) {
      const LoggedAccess& access = log_.accesses[e.first_access + i];
      const int64_t lease = log_.LeaseAt(access.begin);
      if (!access.writes || lease < 0 || !HoldsParameters(lease)) continue;
      if (target < 0 ||
          LeaseAt(lease).memory_class == MemoryClass::kParameter) {
        target = lease;
      }
    }
    if (target < 0 || !checked_.insert({number, e.text}).second) return;
    const std::string name = value.label.empty()
                                 ? log_.DescribeLease(target)
                                 : absl::StrCat("'", value.label, "'");
    const auto add = [&](const std::string& message, std::string missing) {
      findings_.push_back(
          {.kind = Finding::Kind::kGradient,
           .first = {log_.rank,
                     value.mixed_by >= 0 ? value.mixed_by : value.event},
           .second = {log_.rank, index},
           .message = absl::StrCat(log_.Describe(index), " of rank ", log_.rank,
                                   " reads a gradient of ", name, " that is ",
                                   message),
           .missing = std::move(missing)});
    };
    if (!value.mixed.empty()) {
      add(value.mixed, "a sum of parts with the same reduction and divisor");
      return;
    }
    const std::set<int> wanted = AxesOf(value.label);
    const std::string wrong = WrongSum(value, wanted);
    if (!wrong.empty()) {
      add(absl::StrCat(Describe(value), "; ", wrong),
          absl::StrCat("one reduction over ", Names(wanted)));
      return;
    }
    const double divided = value.factor * rule_.divisor;
    if (!value.of_zeros && std::abs(divided - 1) > 1e-6) {
      add(absl::StrCat(Describe(value), ", but the divisor is ", rule_.divisor),
          absl::StrCat("a division by ", rule_.divisor));
    }
  }

  std::string Names(const std::set<int>& axes) const {
    std::vector<std::string> names;
    for (const int a : axes) names.push_back(job_.mesh.axis_name(a));
    return names.empty() ? "no axis" : absl::StrJoin(names, ", ");
  }

  /// Returns the axes of the batch whose ranks share the parameters of `label`:
  /// those along which they are gathered, or replicated.
  std::set<int> AxesOf(const std::string& label) const {
    // A label may end with a note, after a comma.
    const std::string group = label.substr(0, label.find(", without"));
    const auto gathered = gathered_over_.find(group);
    std::set<int> axes;
    const auto at = *job_.mesh.CoordinateOf(log_.rank);
    for (const int a : rule_.batch_axes) {
      if (job_.mesh.size(a) == 1) continue;
      const bool is_gathered =
          gathered != gathered_over_.end() && gathered->second.count(a) > 0;
      if (is_gathered || !IsDistinct(group, at, a)) axes.insert(a);
    }
    return axes;
  }

  /// Returns whether the next rank along `axis` has other parameters under the
  /// same label, such as other experts.
  bool IsDistinct(const std::string& label, MeshCoordinate at, int axis) const {
    const auto mine = job_.origins.find(log_.rank);
    auto& index = at[static_cast<size_t>(axis)];
    index = (index + 1) % job_.mesh.size(axis);
    const auto theirs = job_.origins.find(job_.mesh.rank_at(at));
    if (mine == job_.origins.end() || theirs == job_.origins.end()) {
      return false;
    }
    const auto a = mine->second.find(label);
    const auto b = theirs->second.find(label);
    if (a == mine->second.end()) return false;
    if (b == theirs->second.end()) return true;
    return a->second != 0 && b->second != 0 && a->second != b->second;
  }

  /// Returns why the sum is not over the ranks along `wanted`, each once; "" if
  /// it is.
  std::string WrongSum(const Value& value, const std::set<int>& wanted) const {
    std::vector<int> summands = {log_.rank};
    std::set<int> summed;
    const MeshCoordinate self = *job_.mesh.CoordinateOf(log_.rank);
    for (const int g : value.groups) {
      const LoggedGroup& group = log_.groups[static_cast<size_t>(g)];
      const std::set<int>& axes = varying_[static_cast<size_t>(g)];
      std::vector<int> all;
      // Each member has summed over ranks that are to it as ours are to us.
      for (const int member : group.world_ranks) {
        const MeshCoordinate to = *job_.mesh.CoordinateOf(member);
        for (const int summand : summands) {
          MeshCoordinate at = *job_.mesh.CoordinateOf(summand);
          for (const int a : axes) {
            const auto i = static_cast<size_t>(a);
            const int size = job_.mesh.size(a);
            at[i] = (at[i] + to[i] - self[i] + size) % size;
          }
          all.push_back(job_.mesh.rank_at(at));
        }
      }
      summands = std::move(all);
      summed.insert(axes.begin(), axes.end());
    }
    std::sort(summands.begin(), summands.end());
    const auto twice = std::adjacent_find(summands.begin(), summands.end());
    if (twice != summands.end()) {
      return absl::StrCat("the part of rank ", *twice, " is in the sum ",
                          std::count(summands.begin(), summands.end(), *twice),
                          " times");
    }
    std::vector<int> axes(wanted.begin(), wanted.end());
    for (const int a : summed) {
      if (!IsOfBatch(a)) axes.push_back(a);
    }
    std::vector<int> expected = {log_.rank};
    if (!axes.empty()) expected = job_.mesh.GroupRanks(axes, log_.rank);
    std::sort(expected.begin(), expected.end());
    if (expected == summands) return "";
    return absl::StrCat("it should be the sum over ", DescribeRanks(expected));
  }

  const JobLog& job_;
  const RankLog& log_;
  const GradientRule& rule_;
  std::vector<IntervalMap<int>> memory_;  ///< By lease: numbers of values.
  Values values_;
  std::vector<std::set<int>> varying_;  ///< By group.
  std::map<std::string, std::set<int>> gathered_over_;
  std::set<std::pair<int, int>> checked_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> CheckGradients(const JobLog& job, const RankLog& log,
                                    const GradientRule& rule) {
  return GradientChecker(job, log, rule).Run();
}

}  // namespace crosshatch::verify
