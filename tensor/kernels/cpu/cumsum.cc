// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/lanes.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

namespace crosshatch::internal {
namespace {

// Number of lanes summed together: an addition depends only on the previous one
// in its lane. Fewer if each lane is a separate memory stream.
constexpr int64_t kBlock = 64;
constexpr int64_t kFarBlock = 8;

template <typename In>
using SumOf =
    std::conditional_t<std::is_integral_v<In>, uint64_t /* wraps */, double>;
template <typename In>
using OutOf = std::conditional_t<std::is_integral_v<In>, int64_t, In>;

// Up to kBlock lanes, `step` elements apart.
template <typename In>
struct Block {
  int64_t lanes;
  const In* in;
  OutOf<In>* out;
  int64_t in_step;
  int64_t out_step;

  void Run(const CumSumArgs& args) const {
    const int64_t n = args.shape.sizes[args.dim];
    const int64_t in_stride = args.in.strides[args.dim];
    const int64_t out_stride = args.out.strides[args.dim];
    SumOf<In> sums[kBlock] = {};
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = args.reverse ? n - 1 - i : i;
      const In* from = in + at * in_stride;
      OutOf<In>* to = out + at * out_stride;
      if (in_step == 1 && out_step == 1) {  // Vectorizes.
        Add(from, to, 1, 1, sums);
      } else {
        Add(from, to, in_step, out_step, sums);
      }
    }
  }

  void Add(const In* from, OutOf<In>* to, int64_t from_step, int64_t to_step,
           SumOf<In>* sums) const {
    for (int64_t c = 0; c < lanes; ++c) {
      sums[c] += ConvertElement<SumOf<In>>(from[c * from_step]);
      to[c * to_step] = ConvertElement<OutOf<In>>(sums[c]);
    }
  }
};

template <typename In>
void CumSumAs(const CumSumArgs& args, KernelContext& context) {
  const Lanes lanes(args.shape, args.dim);
  const In* in = static_cast<const In*>(args.in.data);
  auto* out = static_cast<OutOf<In>*>(args.out.data);
  ForRanges(
      context, lanes.count(), args.shape.sizes[args.dim],
      [&](int64_t begin, int64_t end) {
        Block<In> block = {};
        for (int64_t lane = begin; lane < end; lane += block.lanes) {
          const int64_t in_at = lanes.Offset(lane, args.in.strides);
          const int64_t out_at = lanes.Offset(lane, args.out.strides);
          block = {1, in + in_at, out + out_at, 0, 0};
          if (lane + 1 < end) {
            block.in_step = lanes.Offset(lane + 1, args.in.strides) - in_at;
            block.out_step = lanes.Offset(lane + 1, args.out.strides) - out_at;
          }
          const bool near = block.in_step == 1 && block.out_step == 1;
          const int64_t most = std::min(near ? kBlock : kFarBlock, end - lane);
          while (block.lanes < most &&
                 lanes.Offset(lane + block.lanes, args.in.strides) ==
                     in_at + block.lanes * block.in_step &&
                 lanes.Offset(lane + block.lanes, args.out.strides) ==
                     out_at + block.lanes * block.out_step) {
            ++block.lanes;
          }
          block.Run(args);
        }
      });
}

}  // namespace

void CpuCumSum(const CumSumArgs& args, KernelContext& context) {
  const DType dtype = args.in.dtype;
  CH_CHECK(args.out.dtype == (IsFloatingPoint(dtype) ? dtype : DType::kInt64))
      << "cumsum of " << Name(dtype) << " to " << Name(args.out.dtype);
  DispatchDType(dtype,
                [&](auto zero) { CumSumAs<decltype(zero)>(args, context); });
}

}  // namespace crosshatch::internal
