// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "crosshatch/tensor/kernels/reference/reference.h"

namespace crosshatch::reference {
namespace {

template <typename T>
Real At(const void* data, int64_t index) {
  return static_cast<Real>(static_cast<const T*>(data)[index]);
}

template <typename T>
void PutInteger(void* data, int64_t index, Real value) {
  using Limits = std::numeric_limits<T>;
  T result;
  if (std::isnan(value)) {
    result = 0;
  } else if (value <= static_cast<Real>(Limits::min())) {
    result = Limits::min();
  } else if (value >= static_cast<Real>(Limits::max())) {
    result = Limits::max();
  } else {
    result = static_cast<T>(value);
  }
  static_cast<T*>(data)[index] = result;
}

}  // namespace

Real ReadElement(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return At<float>(data, index);
    case DType::kFloat64:
      return At<double>(data, index);
    case DType::kBFloat16:
      return static_cast<float>(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16:
      return static_cast<float>(static_cast<const Float16*>(data)[index]);
    case DType::kInt32:
      return At<int32_t>(data, index);
    case DType::kInt64:
      return At<int64_t>(data, index);
    case DType::kUInt16:
      return At<uint16_t>(data, index);
    case DType::kBool:
      return At<bool>(data, index);
    case DType::kFloat8E4M3:
      return static_cast<float>(static_cast<const Float8E4M3*>(data)[index]);
    case DType::kFloat8E5M2:
      return static_cast<float>(static_cast<const Float8E5M2*>(data)[index]);
    case DType::kUInt8:
      return At<uint8_t>(data, index);
  }
  return 0;
}

void WriteElement(void* data, DType dtype, int64_t index, Real value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kFloat64:
      static_cast<double*>(data)[index] = static_cast<double>(value);
      return;
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[index] = BFloat16(static_cast<float>(value));
      return;
    case DType::kFloat16:
      static_cast<Float16*>(data)[index] = Float16(static_cast<float>(value));
      return;
    case DType::kInt32:
      return PutInteger<int32_t>(data, index, value);
    case DType::kInt64:
      return PutInteger<int64_t>(data, index, value);
    case DType::kUInt16:
      return PutInteger<uint16_t>(data, index, value);
    case DType::kBool:
      static_cast<bool*>(data)[index] = value != 0;
      return;
    case DType::kFloat8E4M3:
      static_cast<Float8E4M3*>(data)[index] =
          Float8E4M3(static_cast<float>(value));
      return;
    case DType::kFloat8E5M2:
      static_cast<Float8E5M2*>(data)[index] =
          Float8E5M2(static_cast<float>(value));
      return;
    case DType::kUInt8:
      return PutInteger<uint8_t>(data, index, value);
  }
}

Real UnitRoundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return std::ldexp(Real(1), -24);
    case DType::kFloat64:
      return std::ldexp(Real(1), -53);
    case DType::kBFloat16:
      return std::ldexp(Real(1), -8);
    case DType::kFloat16:
      return std::ldexp(Real(1), -11);
    default:
      return 0;
  }
}

Real Smallest(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return std::ldexp(Real(1), -149);
    case DType::kFloat64:
      return std::ldexp(Real(1), -1074);
    case DType::kBFloat16:
      return std::ldexp(Real(1), -133);
    case DType::kFloat16:
      return std::ldexp(Real(1), -24);
    default:
      return 0;
  }
}

std::vector<int64_t> Offsets(const KernelShape& shape, const int64_t* strides) {
  std::vector<int64_t> offsets = {0};
  for (int d = 0; d < shape.ndim; ++d) {
    std::vector<int64_t> next;
    for (int64_t offset : offsets) {
      for (int64_t i = 0; i < shape.sizes[d]; ++i) {
        next.push_back(offset + i * strides[d]);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

Reals ReadAll(const KernelShape& shape, const KernelInput& input) {
  Reals values;
  for (int64_t offset : Offsets(shape, input.strides)) {
    values.push_back(ReadElement(input.data, input.dtype, offset));
  }
  return values;
}

}  // namespace crosshatch::reference
