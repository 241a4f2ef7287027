// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/launch.h"

#include <algorithm>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

KernelShape ToKernelShape(ShapeView sizes, const char* op) {
  CH_CHECK(sizes.size() <= static_cast<size_t>(kMaxKernelDims))
      << op << ": more than " << kMaxKernelDims << " dims: " << ToString(sizes);
  KernelShape shape;
  shape.ndim = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), shape.sizes);
  return shape;
}

KernelInput BroadcastInput(const Tensor& tensor, ShapeView sizes) {
  KernelInput input;
  input.data = tensor.raw_data();
  input.dtype = tensor.dtype();
  const ShapeView own = tensor.sizes();
  const ShapeView strides = tensor.strides();
  const size_t lead = sizes.size() - own.size();
  for (size_t i = 0; i < own.size(); ++i) {
    input.strides[lead + i] =
        own[i] == 1 && sizes[lead + i] != 1 ? 0 : strides[i];
  }
  return input;
}

KernelInput Input(const Tensor& tensor) {
  KernelInput input;
  input.data = tensor.raw_data();
  input.dtype = tensor.dtype();
  const ShapeView strides = tensor.strides();
  std::copy(strides.begin(), strides.end(), input.strides);
  return input;
}

KernelOutput Output(const Tensor& tensor) {
  KernelOutput output;
  output.data = tensor.raw_data();
  output.dtype = tensor.dtype();
  const ShapeView strides = tensor.strides();
  std::copy(strides.begin(), strides.end(), output.strides);
  return output;
}

bool Folds(ShapeView sizes, ShapeView strides, int first, int last) {
  // Dims of size 1 do not matter; without elements all strides fit.
  int64_t expected = -1;
  for (int d = last - 1; d >= first; --d) {
    const int64_t size = sizes[static_cast<size_t>(d)];
    const int64_t stride = strides[static_cast<size_t>(d)];
    if (size == 0) return true;
    if (size == 1) continue;
    if (expected >= 0 && stride != expected) return false;
    if (stride < 0) return false;
    expected = stride * size;
  }
  return true;
}

Rows ToRows(const Tensor& tensor) {
  const int last = tensor.ndim() - 1;
  CH_CHECK_GE(last, 0);
  const int64_t cols = tensor.size(last);
  Rows view;
  view.cols = cols;
  for (int64_t size : LeadingSizes(tensor.sizes())) view.rows *= size;
  const bool contiguous_columns =
      cols <= 1 || tensor.strides()[static_cast<size_t>(last)] == 1;
  if (!contiguous_columns ||
      !Folds(tensor.sizes(), tensor.strides(), 0, last)) {
    view.tensor = Dense(tensor);
    view.row_stride = cols;
    return view;
  }
  view.tensor = tensor;
  view.row_stride = cols;
  for (int d = last - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    view.row_stride = tensor.strides()[static_cast<size_t>(d)];
    break;
  }
  return view;
}

Tensor Dense(const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  Tensor copy = Empty(tensor.sizes(), tensor.dtype());
  LaunchCopy(copy, tensor);
  RankContext::Current().AddCopiedBytes(copy.numel() * SizeOf(copy.dtype()));
  return copy;
}

void LaunchCopy(const Tensor& dst, const Tensor& src, WriteMode mode) {
  CopyArgs args;
  args.shape = ToKernelShape(dst.sizes(), "copy");
  args.src = BroadcastInput(src, dst.sizes());
  args.out = Output(dst);
  args.mode = mode;
  Launch(&KernelTable::copy, args);
}

void LaunchFloat8Convert(const Tensor& dst, const Tensor& src,
                         const Tensor& scale) {
  Float8ConvertArgs args;
  args.shape = ToKernelShape(dst.sizes(), "float8_cast");
  args.in = Input(src);
  if (scale.defined()) args.scale = BroadcastInput(scale, dst.sizes());
  args.out = Output(dst);
  Launch(&KernelTable::float8_convert, args);
}

void LaunchFill(const Tensor& dst, double value) {
  FillArgs args;
  args.shape = ToKernelShape(dst.sizes(), "fill");
  args.out = Output(dst);
  args.value = value;
  Launch(&KernelTable::fill, args);
}

void CheckSameDType(const char* op, const Tensor& a, const Tensor& b) {
  CH_CHECK(a.dtype() == b.dtype())
      << op << " of " << a.Describe() << " and " << b.Describe()
      << ": dtypes differ; convert one (ToDType)";
}

void CheckFloating(const char* op, const Tensor& a) {
  CH_CHECK(IsFloatingPoint(a.dtype()))
      << op << " of " << a.Describe() << ": not floating point";
}

void CheckIndices(const char* op, const Tensor& indices) {
  CH_CHECK(indices.dtype() == kInt32 || indices.dtype() == kInt64 ||
           indices.dtype() == kUInt16)
      << op << " with indices " << indices.Describe()
      << ": they must be i32, i64 or u16";
}

}  // namespace crosshatch::internal
