// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/dropout.h"

#include <algorithm>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {

TensorList DropoutOp::Forward(TensorSpan inputs) const {
  const Shape origin(static_cast<size_t>(inputs[0].ndim()), 0);
  return {ForwardPart(inputs[0], origin, inputs[0].sizes())};
}

Tensor DropoutOp::ForwardPart(const Tensor& x, ShapeView offsets,
                              ShapeView global_sizes) const {
  internal::CheckFloating(kInfo.name, x);
  CH_CHECK(x.sizes().size() == offsets.size() &&
           x.sizes().size() == global_sizes.size())
      << kInfo.name << " of " << x.Describe() << " as a part of "
      << ToString(global_sizes);
  Tensor out = Empty(x.sizes(), x.dtype());
  DropoutArgs args;
  args.shape = internal::ToKernelShape(x.sizes(), kInfo.name);
  args.x = internal::Input(x);
  args.out = out.raw_data();
  args.p = p;
  args.key = key;
  args.stream = step;
  std::copy(offsets.begin(), offsets.end(), args.offsets);
  args.offsets[0] += first_row;
  std::copy(global_sizes.begin(), global_sizes.end(), args.global_sizes);
  if (current_step == nullptr) {
    // A replay would draw the same numbers again.
    RankContext::Current().BreakCapture("dropout of one step");
    internal::Launch(&KernelTable::dropout, args);
    return out;
  }
  internal::LaunchEachStep(&KernelTable::dropout,
                           [args, current_step = current_step] {
                             DropoutArgs now = args;
                             now.stream = *current_step;
                             return now;
                           });
  return out;
}

std::shared_ptr<Node> DropoutOp::Differentiate(TensorSpan /*inputs*/,
                                               TensorSpan /*outputs*/) const {
  return MakeNode(kInfo, [p = p, key = key, step = step, first_row = first_row,
                          current_step = current_step](const Tensor& g) {
    return Apply1(DropoutOp(p, key, step, first_row, current_step), {&g, 1});
  });
}

Tensor Dropout(const Tensor& x, double p, uint64_t key, uint64_t step,
               int64_t first_row) {
  CH_CHECK(p >= 0 && p <= 1)
      << "dropout of " << x.Describe() << " with p = " << p;
  CH_CHECK(first_row >= 0) << "dropout of " << x.Describe() << " from row "
                           << first_row << " on";
  return Apply1(DropoutOp(p, key, step, first_row), {&x, 1});
}

}  // namespace crosshatch
