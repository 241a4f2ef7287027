// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/windows.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

Tensor Move(void (*KernelTable::*kernel)(const WindowsArgs&, KernelContext&),
            const Tensor& from, const WindowDim& rows, const WindowDim& cols,
            int64_t images, int64_t channels, Shape sizes) {
  const Tensor in = internal::Dense(from);
  Tensor out = Empty(sizes, from.dtype());
  internal::Launch(kernel, WindowsArgs{.images = images,
                                       .channels = channels,
                                       .rows = rows,
                                       .cols = cols,
                                       .in = in.raw_data(),
                                       .out = out.raw_data(),
                                       .dtype = out.dtype()});
  return out;
}

void AppendDim(const WindowDim& dim, OpKey& key) {
  for (int64_t value : {dim.size, dim.windows, dim.kernel, dim.stride,
                        dim.dilation, dim.padding}) {
    key.push_back(value);
  }
}

WindowDim DimOf(const Tensor& x, int which, const RowsCols& kernel,
                const WindowOptions& options) {
  const auto i = static_cast<size_t>(which);
  WindowDim dim = {.size = x.size(2 + which),
                   .kernel = kernel[i],
                   .stride = options.stride[i],
                   .dilation = options.dilation[i],
                   .padding = options.padding[i]};
  CH_CHECK(dim.kernel > 0 && dim.stride > 0 && dim.dilation > 0 &&
           dim.padding >= 0)
      << "windows of " << dim.kernel << " in dim " << 2 + which << " of "
      << x.Describe() << ", stride " << dim.stride << ", dilation "
      << dim.dilation << ", padding " << dim.padding;
  const int64_t room =
      dim.size + 2 * dim.padding - dim.dilation * (dim.kernel - 1) - 1;
  CH_CHECK_GE(room, 0) << "no window of " << dim.kernel << " with dilation "
                       << dim.dilation << " fits in dim " << 2 + which << " of "
                       << x.Describe() << " with " << dim.padding
                       << " zeros on either side";
  dim.windows = room / dim.stride + 1;
  return dim;
}

}  // namespace

TensorList UnfoldOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  return {Move(&KernelTable::unfold, x, rows, cols, x.size(0), x.size(1),
               {x.size(0), rows.windows, cols.windows, x.size(1), rows.kernel,
                cols.kernel})};
}

std::shared_ptr<Node> UnfoldOp::Differentiate(TensorSpan /*inputs*/,
                                              TensorSpan /*outputs*/) const {
  return MakeNode<0>(kInfo,
                     [rows = rows, cols = cols](const auto&, TensorSpan grads,
                                                GradientSlots& slots) {
                       slots.Put(0, Apply1(FoldOp(rows, cols), {grads[0]}));
                     });
}

void UnfoldOp::AppendKey(OpKey& key) const {
  AppendDim(rows, key);
  AppendDim(cols, key);
}

TensorList FoldOp::Forward(TensorSpan inputs) const {
  const Tensor& windows = inputs[0];
  internal::CheckFloating(kInfo.name, windows);
  return {Move(&KernelTable::fold, windows, rows, cols, windows.size(0),
               windows.size(3),
               {windows.size(0), windows.size(3), rows.size, cols.size})};
}

std::shared_ptr<Node> FoldOp::Differentiate(TensorSpan /*inputs*/,
                                            TensorSpan /*outputs*/) const {
  return MakeNode<0>(kInfo,
                     [rows = rows, cols = cols](const auto&, TensorSpan grads,
                                                GradientSlots& slots) {
                       slots.Put(0, Apply1(UnfoldOp(rows, cols), {grads[0]}));
                     });
}

void FoldOp::AppendKey(OpKey& key) const {
  AppendDim(rows, key);
  AppendDim(cols, key);
}

Tensor Unfold(const Tensor& x, const RowsCols& kernel,
              const WindowOptions& options) {
  CH_CHECK_EQ(x.ndim(), 4) << "unfold takes [N, C, H, W], not " << x.Describe();
  return Apply1(
      UnfoldOp(DimOf(x, 0, kernel, options), DimOf(x, 1, kernel, options)),
      {&x, 1});
}

}  // namespace crosshatch
