// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_REFERENCE_ELEMENTS_H_
#define CROSSHATCH_TENSOR_BACKENDS_REFERENCE_ELEMENTS_H_

/// \file
/// How the kernels of the reference device read and write, one element at a
/// time.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"
#include "crosshatch/tensor/kernels/reference/element.h"

namespace crosshatch::reference {

/// Integers and bool, which are computed in int64 and wrap.
inline bool IsInteger(DType dtype) { return !IsFloatingPoint(dtype); }
int64_t ReadInteger(const void* data, DType dtype, int64_t index);
void WriteInteger(void* data, DType dtype, int64_t index, int64_t value);

/// Wrapping arithmetic.
inline int64_t Plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) +
                              static_cast<uint64_t>(b));
}
inline int64_t Times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) *
                              static_cast<uint64_t>(b));
}
inline int64_t Minus(int64_t a) { return Times(-1, a); }

/// (=, +=) value.
void Put(void* data, DType dtype, int64_t index, Real value,
         WriteMode mode = WriteMode::kOverwrite);
void PutInteger(void* data, DType dtype, int64_t index, int64_t value,
                WriteMode mode = WriteMode::kOverwrite);
/// `values`, row-major, to an operand of `shape`.
void PutAll(const KernelShape& shape, const KernelOutput& out,
            const Reals& values, WriteMode mode = WriteMode::kOverwrite);
/// `values` to contiguous elements from `first` on.
void PutRun(void* data, DType dtype, int64_t first, const Reals& values,
            WriteMode mode = WriteMode::kOverwrite);

/// The bits of an element, to one of the same dtype.
void CopyElement(void* to, int64_t to_index, const void* from,
                 int64_t from_index, DType dtype);
void ZeroElement(void* to, int64_t index, DType dtype);

/// `value` as the type that elements of `dtype` are computed in has it.
inline Real ComputeScalar(DType dtype, double value) {
  return dtype == DType::kFloat64 ? Real{value}
                                  : Real{static_cast<float>(value)};
}

/// Calls f(index) for each element of `shape`, row-major; index[d] is the
/// element's in dim d.
template <typename F>
void ForEachElement(const KernelShape& shape, F f) {
  int64_t count = 1;
  for (int d = 0; d < shape.ndim; ++d) count *= shape.sizes[d];
  int64_t index[kMaxKernelDims] = {};
  for (int64_t i = 0; i < count; ++i) {
    f(static_cast<const int64_t*>(index));
    for (int d = shape.ndim - 1; d >= 0; --d) {
      if (++index[d] < shape.sizes[d]) break;
      index[d] = 0;
    }
  }
}

/// Where the element lies.
inline int64_t OffsetOf(const KernelShape& shape, const int64_t* index,
                        const int64_t* strides) {
  int64_t offset = 0;
  for (int d = 0; d < shape.ndim; ++d) offset += index[d] * strides[d];
  return offset;
}

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_BACKENDS_REFERENCE_ELEMENTS_H_
