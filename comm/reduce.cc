// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"

namespace crosshatch::internal {
namespace {

template <typename T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<BFloat16> {
  using type = float;
};
template <>
struct ComputeType<Float16> {
  using type = float;
};
// Unsigned, so that integers wrap.
template <>
struct ComputeType<int32_t> {
  using type = uint32_t;
};
template <>
struct ComputeType<int64_t> {
  using type = uint64_t;
};

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return b < a || b != b ? b : a;
    case ReduceOp::kMax:
      return b > a || b != b ? b : a;
  }
  return a;
}

template <typename T>
void Run(const AccumulateRanksArgs& args) {
  using A = typename ComputeType<T>::type;
  constexpr int64_t kBlock = 1024;
  A acc[kBlock];
  for (int64_t begin = 0; begin < args.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, args.count - begin);
    for (int r = 0; r < args.num_sources; ++r) {
      const T* x = static_cast<const T*>(args.sources[r]) + begin;
      if (r == 0) {
        for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(x[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          acc[i] = Combine(args.op, acc[i], static_cast<A>(x[i]));
        }
      }
    }
    T* out = static_cast<T*>(args.out) + begin;
    if constexpr (!std::is_integral_v<T>) {
      if (args.op == ReduceOp::kAvg) {
        for (int64_t i = 0; i < n; ++i)
          acc[i] /= static_cast<A>(args.num_sources);
      }
      if (args.scale != 1) {
        for (int64_t i = 0; i < n; ++i) acc[i] *= static_cast<A>(args.scale);
      }
    }
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(acc[i]);
  }
}

}  // namespace

void AccumulateRanks(const AccumulateRanksArgs& args) {
  switch (args.dtype) {
    case DType::kFloat32:
      return Run<float>(args);
    case DType::kFloat64:
      return Run<double>(args);
    case DType::kBFloat16:
      return Run<BFloat16>(args);
    case DType::kFloat16:
      return Run<Float16>(args);
    case DType::kInt32:
      return Run<int32_t>(args);
    case DType::kInt64:
      return Run<int64_t>(args);
    case DType::kUInt16:
      return Run<uint16_t>(args);
    case DType::kBool:
      CH_CHECK(false) << "reduction of bool";
  }
}

}  // namespace crosshatch::internal
