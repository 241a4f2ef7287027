// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/dtype.h"

#include "crosshatch/tensor/float8_bits.h"
#include "crosshatch/tensor/half_bits.h"

namespace crosshatch {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "f32";
    case DType::kFloat64:
      return "f64";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "f16";
    case DType::kInt32:
      return "i32";
    case DType::kInt64:
      return "i64";
    case DType::kUInt16:
      return "u16";
    case DType::kBool:
      return "bool";
    case DType::kFloat8E4M3:
      return "f8e4m3";
    case DType::kFloat8E5M2:
      return "f8e5m2";
    case DType::kUInt8:
      return "u8";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << Name(dtype);
}

BFloat16::BFloat16(float value) : bits(internal::BFloat16Bits(value)) {}
BFloat16::operator float() const { return internal::FromBFloat16Bits(bits); }

Float16::Float16(float value) : bits(internal::Float16Bits(value)) {}
Float16::operator float() const { return internal::FromFloat16Bits(bits); }

Float8E4M3::Float8E4M3(float value) : bits(internal::Float8E4M3Bits(value)) {}
Float8E4M3::operator float() const {
  return internal::FromFloat8E4M3Bits(bits);
}

Float8E5M2::Float8E5M2(float value) : bits(internal::Float8E5M2Bits(value)) {}
Float8E5M2::operator float() const {
  return internal::FromFloat8E5M2Bits(bits);
}

}  // namespace crosshatch
