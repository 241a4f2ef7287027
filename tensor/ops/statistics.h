// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_STATISTICS_H_
#define CROSSHATCH_TENSOR_OPS_STATISTICS_H_

/// \file
/// Reductions composed of others (reduce.h), with their gradients and sharding
/// rules. If a reduced dim is split, the ranks exchange results of the local
/// reductions and never the tensor. Dims as in reduce.h.
///
/// Floating point unless stated otherwise; the result has the input's dtype.
/// 16-bit floats are computed in f32 throughout and rounded once.

#include <cstdint>

#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns sum(|a|^p)^(1/p), for any p except NaN: the largest |a| for
/// infinity, the smallest for -infinity, the number of elements other than 0
/// for 0. Where the derivative does not exist (a norm of 0, an element 0 with p
/// <= 1) the gradient is 0; equal largest elements share it. A norm of no
/// elements is 0; with p < 0 or infinite it is an error.
Tensor Norm(const Tensor& a, double p = 2, ShapeView dims = {},
            bool keepdim = false);

/// Returns sum((a - mean(a))^2) / max(n - correction, 0), with n elements, in
/// two passes, so that a large mean costs no precision.
Tensor Var(const Tensor& a, ShapeView dims = {}, bool keepdim = false,
           double correction = 1);
/// Returns the square root of Var. Where it is 0, the gradient is 0.
Tensor Std(const Tensor& a, ShapeView dims = {}, bool keepdim = false,
           double correction = 1);

/// Returns log(sum(exp(a))), without overflow; -inf for no elements.
Tensor LogSumExp(const Tensor& a, ShapeView dims = {}, bool keepdim = false);

/// \name Of any dtype; the result is bool. NaN counts as true.
/// @{

/// Whether some element is not 0.
Tensor Any(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// Whether no element is 0.
Tensor All(const Tensor& a, ShapeView dims = {}, bool keepdim = false);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_STATISTICS_H_
