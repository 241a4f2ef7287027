// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CREATION_H_
#define CROSSHATCH_TENSOR_CREATION_H_

/// \file
/// Makers of local tensors, on the rank's device, in the current stream's order
/// and of the current memory class.

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Undefined content.
Tensor Empty(ShapeView sizes, DType dtype = kFloat32);
Tensor Zeros(ShapeView sizes, DType dtype = kFloat32);
Tensor Ones(ShapeView sizes, DType dtype = kFloat32);
Tensor Full(ShapeView sizes, double value, DType dtype = kFloat32);
/// 0, 1, ..., n-1.
Tensor Arange(int64_t n, DType dtype = kFloat32);

/// Copies `values` (row-major, as many as the sizes say).
template <typename T>
Tensor FromValues(ShapeView sizes, absl::Span<const T> values);
extern template Tensor FromValues<float>(ShapeView, absl::Span<const float>);
extern template Tensor FromValues<double>(ShapeView, absl::Span<const double>);
extern template Tensor FromValues<int32_t>(ShapeView,
                                           absl::Span<const int32_t>);
extern template Tensor FromValues<int64_t>(ShapeView,
                                           absl::Span<const int64_t>);

/// `tensor`, which is local, where this rank computes: itself where it lies
/// there, else a copy of what lies in the host's memory, made in the current
/// stream's order and contiguous. Ranks of a device bring to it what a thread
/// without a rank made, such as a loader's. Outside of the graph.
Tensor ToThisDevice(const Tensor& tensor);

/// Names and shapes, no memory and no accounting: Device::Meta() until its
/// storage is attached. `owner` names it in errors.
Tensor Deferred(ShapeView sizes, DType dtype, std::string owner);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CREATION_H_
