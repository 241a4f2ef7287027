// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/covering_array.h"

#include <cstddef>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

constexpr int kOpen = -1;

using Pair = std::tuple<int, int, int, int>;

Pair Ordered(int a, int va, int b, int vb) {
  return a < b ? Pair{a, va, b, vb} : Pair{b, vb, a, va};
}

}  // namespace

std::vector<Combination> CoverAllPairs(const std::vector<TestedOption>& options,
                                       const MayMeet& may_meet) {
  const int n = static_cast<int>(options.size());
  const auto count = [&](int option) {
    return static_cast<int>(options[static_cast<size_t>(option)].values.size());
  };
  std::set<Pair> missing;
  for (int a = 0; a < n; ++a) {
    for (int b = a + 1; b < n; ++b) {
      for (int va = 0; va < count(a); ++va) {
        for (int vb = 0; vb < count(b); ++vb) {
          if (may_meet(a, va, b, vb)) missing.insert({a, va, b, vb});
        }
      }
    }
  }

  std::vector<Combination> combinations;
  while (!missing.empty()) {
    Combination chosen(static_cast<size_t>(n), kOpen);
    const auto [a, va, b, vb] = *missing.begin();
    chosen[static_cast<size_t>(a)] = va;
    chosen[static_cast<size_t>(b)] = vb;
    for (int f = 0; f < n; ++f) {
      int& value = chosen[static_cast<size_t>(f)];
      if (value != kOpen) continue;
      int most = -1;
      int best = kOpen;
      for (int k = 0; k < count(f); ++k) {
        // Start with another value each time, so that ties alternate.
        const int v = (k + static_cast<int>(combinations.size())) % count(f);
        int adds = 0;
        bool allowed = true;
        for (int g = 0; g < n && allowed; ++g) {
          const int vg = chosen[static_cast<size_t>(g)];
          if (vg == kOpen) continue;
          const auto [x, vx, y, vy] = Ordered(f, v, g, vg);
          allowed = may_meet(x, vx, y, vy);
          adds += static_cast<int>(missing.count({x, vx, y, vy}));
        }
        if (allowed && adds > most) {
          most = adds;
          best = v;
        }
      }
      CH_CHECK(best != kOpen)
          << "no value of " << options[static_cast<size_t>(f)].name
          << " may meet " << Describe(options, chosen);
      value = best;
    }
    for (int f = 0; f < n; ++f) {
      for (int g = f + 1; g < n; ++g) {
        missing.erase({f, chosen[static_cast<size_t>(f)], g,
                       chosen[static_cast<size_t>(g)]});
      }
    }
    combinations.push_back(std::move(chosen));
  }
  return combinations;
}

std::string Describe(const std::vector<TestedOption>& options,
                     const Combination& combination) {
  std::string text;
  for (size_t f = 0; f < options.size(); ++f) {
    if (combination[f] == kOpen) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", options[f].name, " ",
                    options[f].values[static_cast<size_t>(combination[f])]);
  }
  return text;
}

}  // namespace crosshatch
