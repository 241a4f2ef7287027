// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_ELEMENT_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_ELEMENT_H_

/// \file
/// Single elements of any dtype as numbers wide enough for every one of them.
/// The references of this package are the slow and obvious definitions that
/// tests compare kernels with: same args, results as Real, row-major, not
/// rounded to the output's dtype.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::reference {

using Real = long double;
using Reals = std::vector<Real>;

Real ReadElement(const void* data, DType dtype, int64_t index);
/// Rounds, saturates and truncates as CopyArgs says.
void WriteElement(void* data, DType dtype, int64_t index, Real value);

/// Half of the distance from 1 to the next number: rounding to a floating point
/// dtype changes x by at most UnitRoundoff * |x| + Smallest. 0 for others.
Real UnitRoundoff(DType dtype);
/// The smallest positive number of a floating point dtype; 0 for others.
Real Smallest(DType dtype);

/// Element offsets of an operand in the row-major order of `shape`.
std::vector<int64_t> Offsets(const KernelShape& shape, const int64_t* strides);

/// The elements of an operand, row-major.
Reals ReadAll(const KernelShape& shape, const KernelInput& input);
Reals ReadAll(const KernelShape& shape, const KernelOutput& output);
/// `count` elements `stride` apart.
Reals ReadRun(const void* data, DType dtype, int64_t count, int64_t stride = 1);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_ELEMENT_H_
