// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_INTERVAL_MAP_H_
#define CROSSHATCH_VERIFY_INTERVAL_MAP_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace crosshatch::verify {

/// A value for each byte of memory, stored by intervals; by default T().
template <typename T>
class IntervalMap {
 public:
  /// Calls visit(begin, end, value) for intervals that partition [begin, end),
  /// in ascending order. `visit` may change the value, for these bytes only.
  template <typename F>
  void Visit(int64_t begin, int64_t end, F visit) {
    if (begin >= end) return;
    SplitAt(begin);
    SplitAt(end);
    int64_t at = begin;
    for (auto it = intervals_.lower_bound(begin); at < end; ++it) {
      if (it == intervals_.end() || it->first > at) {  // A gap.
        const int64_t stop = it == intervals_.end() ? end
                             : it->first < end      ? it->first
                                                    : end;
        it = intervals_.emplace_hint(it, at, Interval{stop, T()});
      }
      visit(it->first, it->second.end, it->second.value);
      at = it->second.end;
    }
  }
  void Clear() { intervals_.clear(); }

  /// Calls visit(begin, end, value) for all intervals that have been visited.
  template <typename F>
  void ForEach(F visit) const {
    for (const auto& [begin, interval] : intervals_) {
      visit(begin, interval.end, interval.value);
    }
  }

 private:
  struct Interval {
    int64_t end;
    T value;
  };

  void SplitAt(int64_t at) {
    auto it = intervals_.upper_bound(at);
    if (it == intervals_.begin()) return;
    it = std::prev(it);
    if (it->first == at || it->second.end <= at) return;
    const Interval right{it->second.end, it->second.value};
    it->second.end = at;
    intervals_.emplace(at, right);
  }

  std::map<int64_t, Interval> intervals_;  // By begin; disjoint.
};

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_INTERVAL_MAP_H_
