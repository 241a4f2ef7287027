// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CREATION_H_
#define CROSSHATCH_TENSOR_CREATION_H_

/// \file
/// Factories of local tensors, on the rank's device, in the order of the
/// current stream and of the current memory class.

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns a tensor with undefined content.
Tensor Empty(ShapeView sizes, DType dtype = kFloat32);
Tensor Zeros(ShapeView sizes, DType dtype = kFloat32);
Tensor Ones(ShapeView sizes, DType dtype = kFloat32);
Tensor Full(ShapeView sizes, double value, DType dtype = kFloat32);
/// Returns [0, 1, ..., n-1].
Tensor Arange(int64_t n, DType dtype = kFloat32);

/// Returns a tensor of `values` (row-major, one per element).
template <typename T>
Tensor FromValues(ShapeView sizes, absl::Span<const T> values);
extern template Tensor FromValues<float>(ShapeView, absl::Span<const float>);
extern template Tensor FromValues<double>(ShapeView, absl::Span<const double>);
extern template Tensor FromValues<int32_t>(ShapeView,
                                           absl::Span<const int32_t>);
extern template Tensor FromValues<int64_t>(ShapeView,
                                           absl::Span<const int64_t>);

/// Returns the local `tensor` on this rank's device: the tensor itself if it is
/// there, otherwise a contiguous copy from host memory, in the order of the
/// current stream. Used for tensors of threads without a rank, such as a
/// loader's. Outside the graph.
Tensor ToThisDevice(const Tensor& tensor);

/// Returns a tensor without memory, which is not accounted: on Device::Meta()
/// until memory is attached to its storage. `owner` names it in errors.
Tensor Deferred(ShapeView sizes, DType dtype, std::string owner);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CREATION_H_
