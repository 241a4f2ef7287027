// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/reference/scan_and_sort.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace crosshatch::reference {
namespace {

// Returns the row-major indices of each lane's elements in a tensor of `shape`.
std::vector<std::vector<size_t>> Lanes(const KernelShape& shape, int dim) {
  int64_t inner = 1, total = 1;
  for (int d = 0; d < shape.ndim; ++d) {
    total *= shape.sizes[d];
    if (d > dim) inner *= shape.sizes[d];
  }
  const int64_t n = shape.sizes[dim];
  std::vector<std::vector<size_t>> lanes;
  for (int64_t start = 0; n > 0 && start < total; ++start) {
    if (start / inner % n != 0) continue;
    lanes.emplace_back();
    for (int64_t i = 0; i < n; ++i) {
      lanes.back().push_back(static_cast<size_t>(start + i * inner));
    }
  }
  return lanes;
}

bool Before(Real a, Real b) {
  if (std::isnan(a)) return false;
  return std::isnan(b) || a < b;
}

}  // namespace

RunningSum CumSum(const CumSumArgs& args) {
  const Reals in = ReadAll(args.shape, args.in);
  RunningSum result = {Reals(in.size()), Reals(in.size())};
  for (std::vector<size_t> lane : Lanes(args.shape, args.dim)) {
    if (args.reverse) std::reverse(lane.begin(), lane.end());
    Real sum = 0;
    Real magnitude = 0;
    for (size_t at : lane) {
      result.values[at] = sum += in[at];
      result.magnitudes[at] = magnitude += std::abs(in[at]);
    }
  }
  return result;
}

Sorted Sort(const SortArgs& args) {
  const Reals in = ReadAll(args.shape, args.in);
  KernelShape taken = args.shape;
  taken.sizes[args.dim] = args.count;
  const auto from = Lanes(args.shape, args.dim);
  const auto to = Lanes(taken, args.dim);
  Sorted result;
  for (size_t lane = 0; lane < to.size(); ++lane) {
    std::vector<int64_t> order(from[lane].size());
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int64_t i) {
      return in[from[lane][static_cast<size_t>(i)]];
    };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return args.descending ? Before(value(b), value(a))
                             : Before(value(a), value(b));
    });
    order.resize(static_cast<size_t>(args.count));
    if (!args.sorted) std::sort(order.begin(), order.end());
    result.values.resize(to.size() * order.size());
    result.indices.resize(to.size() * order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      result.values[to[lane][i]] = value(order[i]);
      result.indices[to[lane][i]] = order[i];
    }
  }
  return result;
}

}  // namespace crosshatch::reference
