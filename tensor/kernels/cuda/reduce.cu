// SPDX-License-Identifier: Apache-2.0
// A reduction has a group of threads for each output, which share its terms: a
// whole block if the terms are contiguous in memory, or a column of a block's
// threads if the outputs are. If the outputs alone would leave a device idle,
// their terms are split into pieces, whose results a second kernel combines.
// The split depends on the shape alone.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/reduce_config.h"

namespace crosshatch::internal {
namespace {

/// A value and its index, row-major within the reduced dims.
template <typename C>
struct Indexed {
  C first;
  int64_t second;
};

/// Defines how terms are combined. Value is a thread's partial result.
template <typename C>
struct SumOp {
  using Value = C;
  static __device__ Value Identity() { return C(0); }
  static __device__ Value Term(C x, int64_t /*index*/) { return x; }
  static __device__ Value Combine(Value a, Value b) { return Plus(a, b); }
};
template <typename C>
struct SquareOp : SumOp<C> {
  static __device__ C Term(C x, int64_t /*index*/) { return Times(x, x); }
};
template <typename C>
struct ProductOp {
  using Value = C;
  static __device__ Value Identity() { return C(1); }
  static __device__ Value Term(C x, int64_t /*index*/) { return x; }
  static __device__ Value Combine(Value a, Value b) { return Times(a, b); }
};

template <typename C>
__device__ __forceinline__ C Lowest() {
  if constexpr (std::is_integral_v<C>) {
    return std::numeric_limits<C>::min();
  } else {
    return -std::numeric_limits<C>::infinity();
  }
}
template <typename C>
__device__ __forceinline__ C Highest() {
  if constexpr (std::is_integral_v<C>) {
    return std::numeric_limits<C>::max();
  } else {
    return std::numeric_limits<C>::infinity();
  }
}

template <typename C>
struct MaxOp {
  using Value = C;
  static __device__ Value Identity() { return Lowest<C>(); }
  static __device__ Value Term(C x, int64_t /*index*/) { return x; }
  static __device__ Value Combine(Value a, Value b) { return LargerOf(a, b); }
};
template <typename C>
struct MinOp {
  using Value = C;
  static __device__ Value Identity() { return Highest<C>(); }
  static __device__ Value Term(C x, int64_t /*index*/) { return x; }
  static __device__ Value Combine(Value a, Value b) { return SmallerOf(a, b); }
};

/// Selects the first of the most extreme terms. NaN is more extreme than any
/// number.
template <typename C, bool kMax>
struct ArgOp {
  using Value = Indexed<C>;
  static __device__ Value Identity() {
    return {C(0), std::numeric_limits<int64_t>::max()};
  }
  static __device__ Value Term(C x, int64_t index) { return {x, index}; }
  static __device__ Value Combine(const Value& a, const Value& b) {
    constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
    if (b.second == kNone) return a;
    if (a.second == kNone) return b;
    const bool a_nan = a.first != a.first;
    const bool b_nan = b.first != b.first;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && a.first != b.first) {
      return (a.first > b.first) == kMax ? a : b;
    }
    return a.second < b.second ? a : b;
  }
};

/// A thread's consecutive terms, combined in runs of 16, and the runs likewise.
/// A term of a sum is therefore added at most 3 * 16 times.
template <typename Op>
class Run {
 public:
  using Value = typename Op::Value;
  __device__ __forceinline__ void Add(const Value& term) {
    run_ = Op::Combine(run_, term);
    if (++count_ % 16 == 0) {
      runs_ = Op::Combine(runs_, run_);
      run_ = Op::Identity();
      if (count_ % 256 == 0) {
        total_ = Op::Combine(total_, runs_);
        runs_ = Op::Identity();
      }
    }
  }
  __device__ __forceinline__ Value Result() const {
    return Op::Combine(total_, Op::Combine(runs_, run_));
  }

 private:
  Value run_ = Op::Identity();
  Value runs_ = Op::Identity();
  Value total_ = Op::Identity();
  int count_ = 0;
};

/// The conversion of an output's value.
struct Finish {
  void* out;
  DType dtype;
  WriteMode mode;
  bool is_mean;
  bool is_nothing;  // There are no terms.
};

template <typename C>
__device__ __forceinline__ void StoreResult(const Finish& finish,
                                            const ReduceConfig& config,
                                            int64_t output, C value) {
  if (finish.is_mean) {
    if constexpr (std::is_integral_v<C>) {
      value = config.terms == 0 ? 0 : value / config.terms;
    } else {
      value = value / static_cast<C>(config.terms);
    }
  }
  const int64_t at = config.OutOffset(output);
  if (finish.mode == WriteMode::kAccumulate) {
    value = Plus(value, LoadElement<C>(finish.out, finish.dtype, at));
  }
  if constexpr (std::is_integral_v<C>) {
    // The limit for no terms is the dtype's own.
    if (finish.is_nothing && finish.dtype == DType::kBool) value = value > 0;
    if (finish.is_nothing && finish.dtype == DType::kInt32) {
      value = value > 1   ? std::numeric_limits<int32_t>::max()
              : value < 0 ? std::numeric_limits<int32_t>::min()
                          : value;
    }
    if (finish.is_nothing && finish.dtype == DType::kUInt16) {
      value = value > 1   ? std::numeric_limits<uint16_t>::max()
              : value < 0 ? 0
                          : value;
    }
  }
  StoreElement(finish.out, finish.dtype, at, value);
}
template <typename C>
__device__ __forceinline__ void StoreResult(const Finish& finish,
                                            const ReduceConfig& config,
                                            int64_t output,
                                            const Indexed<C>& value) {
  StoreElement<int64_t>(finish.out, finish.dtype, config.OutOffset(output),
                        value.second);
}

/// Reduces one piece of the terms of each of a block's outputs. N: terms that
/// are loaded at once.
template <typename C, typename Op, int N>
__global__ void __launch_bounds__(256)
    ReduceTermsKernel(ReduceConfig config, const void* in, DType dtype,
                      typename Op::Value* partial, Finish finish) {
  using Value = typename Op::Value;
  CH_SHARED(values, Value[256]);
  const auto thread = static_cast<int>(threadIdx.x);
  const int rows = static_cast<int>(blockDim.x) / config.lanes;
  const int lane = config.terms_first ? thread / rows : thread % config.lanes;
  const int row = config.terms_first ? thread % rows : thread / config.lanes;
  const int next_row = config.terms_first ? 1 : config.lanes;
  const int64_t groups = (config.outputs + config.lanes - 1) / config.lanes;
  for (int64_t b = blockIdx.x; b < groups * config.pieces; b += gridDim.x) {
    const int64_t piece = b / groups;
    const int64_t output = b % groups * config.lanes + lane;
    const int64_t first = piece * config.terms_per_piece;
    const int64_t end = first + config.terms_per_piece < config.terms
                            ? first + config.terms_per_piece
                            : config.terms;
    Run<Op> run;
    if (output < config.outputs) {
      const int64_t base = config.InOffset(output);
      for (int64_t t = first + int64_t{row} * N; t < end;
           t += int64_t{rows} * N) {
        C x[N];
        LoadElements(in, dtype, base + config.TermOffset(t), x);
        Value value = Op::Term(x[0], t);
#pragma unroll
        for (int i = 1; i < N; ++i) {
          value = Op::Combine(value, Op::Term(x[i], t + i));
        }
        run.Add(value);
      }
    }
    // Combine halves of the rows.
    values[thread] = run.Result();
    __syncthreads();
    for (int half = rows / 2; half > 0; half /= 2) {
      if (row < half) {
        values[thread] =
            Op::Combine(values[thread], values[thread + half * next_row]);
      }
      __syncthreads();
    }
    if (row == 0 && output < config.outputs) {
      if (partial != nullptr) {
        StoreGlobal(partial + piece * config.outputs + output, values[thread]);
      } else {
        StoreResult(finish, config, output, values[thread]);
      }
    }
    // No barrier: the next iteration first writes values that only their own
    // thread reads.
  }
}

/// Combines the pieces of each output, by a block.
template <typename Op>
__global__ void __launch_bounds__(256)
    CombineKernel(ReduceConfig config, const typename Op::Value* partial,
                  Finish finish) {
  for (int64_t output = blockIdx.x; output < config.outputs;
       output += gridDim.x) {
    Run<Op> run;
    for (int64_t p = threadIdx.x; p < config.pieces; p += blockDim.x) {
      run.Add(LoadGlobal<typename Op::Value>(partial + p * config.outputs +
                                             output));
    }
    const auto value = BlockReduce(
        run.Result(),
        [](const auto& a, const auto& b) { return Op::Combine(a, b); });
    if (threadIdx.x == 0) StoreResult(finish, config, output, value);
  }
}

template <template <typename> typename OpOf, typename C>
void ReduceAs(const ReduceArgs& args, KernelContext& context) {
  using Op = OpOf<C>;
  using Value = typename Op::Value;
  const ReduceConfig config =
      MakeReduceConfig(args, kScratchBytes / int64_t{sizeof(Value)});
  const Finish finish = {args.out.data, args.out.dtype, args.mode,
                         args.kind == ReduceKind::kMean, config.terms == 0};
  auto* const partial = static_cast<Value*>(
      config.pieces > 1 ? CudaContextOf(context).scratch : nullptr);
  const auto launch = [&](auto width) {
    LaunchKernel("reduce", &ReduceTermsKernel<C, Op, decltype(width)::value>,
                 config.geometry, context, config, args.in.data, args.in.dtype,
                 partial, finish);
  };
  switch (config.width) {
    case 8:
      if constexpr (std::is_same_v<C, float>) {
        launch(std::integral_constant<int, 8>());
      }
      break;
    case 4:
      if constexpr (std::is_same_v<C, float>) {
        launch(std::integral_constant<int, 4>());
      }
      break;
    case 2:
      if constexpr (std::is_same_v<C, double>) {
        launch(std::integral_constant<int, 2>());
      }
      break;
    default:
      launch(std::integral_constant<int, 1>());
  }
  if (config.pieces > 1) {
    LaunchKernel(
        "reduce_pieces", &CombineKernel<Op>,
        GeometryOfRows(config.outputs, std::min<int64_t>(config.pieces, 256)),
        context, config, static_cast<const Value*>(partial), finish);
  }
}

template <typename C>
using ArgMaxOp = ArgOp<C, true>;
template <typename C>
using ArgMinOp = ArgOp<C, false>;

template <typename C>
void ReduceIn(const ReduceArgs& args, KernelContext& context) {
  switch (args.kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean:
      return ReduceAs<SumOp, C>(args, context);
    case ReduceKind::kProduct:
      return ReduceAs<ProductOp, C>(args, context);
    case ReduceKind::kMax:
      return ReduceAs<MaxOp, C>(args, context);
    case ReduceKind::kMin:
      return ReduceAs<MinOp, C>(args, context);
    case ReduceKind::kSumOfSquares:
      return ReduceAs<SquareOp, C>(args, context);
    case ReduceKind::kArgMax:
      return ReduceAs<ArgMaxOp, C>(args, context);
    case ReduceKind::kArgMin:
      return ReduceAs<ArgMinOp, C>(args, context);
  }
}

}  // namespace

void CudaReduce(const ReduceArgs& args, KernelContext& context) {
  const bool is_arg =
      args.kind == ReduceKind::kArgMax || args.kind == ReduceKind::kArgMin;
  CH_CHECK(!is_arg || args.out.dtype == DType::kInt64)
      << "reduce kernel: indices of " << Name(args.out.dtype);
  if (!IsFloatingPoint(args.in.dtype)) return ReduceIn<int64_t>(args, context);
  if (args.in.dtype == DType::kFloat64 ||
      (!is_arg && args.out.dtype == DType::kFloat64)) {
    return ReduceIn<double>(args, context);
  }
  ReduceIn<float>(args, context);
}

}  // namespace crosshatch::internal
