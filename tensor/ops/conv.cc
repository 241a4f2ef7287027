// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/conv.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

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
  return MakeNode(kInfo, [rows = rows, cols = cols](const Tensor& g) {
    return Apply1(FoldOp(rows, cols), {g});
  });
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
  return MakeNode(kInfo, [rows = rows, cols = cols](const Tensor& g) {
    return Apply1(UnfoldOp(rows, cols), {g});
  });
}

Tensor Unfold(const Tensor& x, const RowsCols& kernel,
              const WindowOptions& options) {
  CH_CHECK_EQ(x.ndim(), 4) << "unfold takes [N, C, H, W], not " << x.Describe();
  return Apply1(
      UnfoldOp(DimOf(x, 0, kernel, options), DimOf(x, 1, kernel, options)),
      {&x, 1});
}

namespace {

/// Returns `a` in another shape. Unlike Reshape, it gathers splits within dims
/// that are merged, because the program does not choose how Conv arranges its
/// inputs.
Tensor As(const Tensor& a, ShapeView sizes) {
  return Apply1(ViewOp(sizes, /*may_copy=*/true, /*redistributes=*/true),
                {&a, 1});
}

/// windows [N, H', W', C, k, k] times weight [O, C / groups, k, k]:
/// [N, H', W', O], each group on its own.
Tensor ProductsOfGroups(const Tensor& windows, const Tensor& weight,
                        int64_t groups) {
  const int64_t places = windows.size(0) * windows.size(1) * windows.size(2);
  const int64_t depth = weight.numel() / weight.size(0);
  const Tensor by_group =
      Permute(As(windows, {places, groups, depth}), {1, 0, 2});
  const Tensor of_group = As(weight, {groups, weight.size(0) / groups, depth});
  const Tensor products = MatMul(by_group, Transpose(of_group, 1, 2));
  return As(Permute(products, {1, 0, 2}), {windows.size(0), windows.size(1),
                                           windows.size(2), weight.size(0)});
}

/// Returns whether channels and dims are those of a convolution.
bool Fit(const Tensor& x, const Tensor& weight, int ndim, int64_t groups) {
  return x.ndim() == ndim && weight.ndim() == ndim && groups > 0 &&
         x.size(1) == weight.size(1) * groups && weight.size(0) % groups == 0 &&
         weight.numel() > 0;
}

}  // namespace

Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  const int64_t groups = options.groups;
  CH_CHECK(Fit(x, weight, 4, groups))
      << "conv of " << x.Describe() << " by a weight of " << weight.Describe()
      << " in " << groups << " groups: [N, C, H, W] takes [O, C / groups, "
      << "kernel, kernel] with O a multiple of the groups";
  const Tensor windows =
      Unfold(x, {weight.size(2), weight.size(3)}, options.windows);
  Tensor y;
  if (groups == 1) {
    const int64_t depth = weight.numel() / weight.size(0);
    y = Linear(
        As(windows, {windows.size(0), windows.size(1), windows.size(2), depth}),
        As(weight, {weight.size(0), depth}), bias);
  } else {
    y = ProductsOfGroups(windows, weight, groups);
    if (bias.defined()) y = Add(y, bias);
  }
  return Permute(y, {0, 3, 1, 2});
}

Tensor Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options) {
  CH_CHECK(Fit(x, weight, 3, options.groups))
      << "conv of " << x.Describe() << " by a weight of " << weight.Describe()
      << " in " << options.groups << " groups: [N, C, L] takes [O, C / groups, "
      << "kernel] with O a multiple of the groups";
  const Tensor y = Conv2d(Unsqueeze(x, 2), Unsqueeze(weight, 2), bias,
                          {.windows = {.stride = {1, options.stride},
                                       .padding = {0, options.padding},
                                       .dilation = {1, options.dilation}},
                           .groups = options.groups});
  return Squeeze(y, 2);
}

}  // namespace crosshatch
