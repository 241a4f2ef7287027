// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/reference/elements.h"

#include <cstddef>
#include <cstring>

#include "crosshatch/tensor/kernels/reference/address.h"

namespace crosshatch::reference {
namespace {

template <typename T>
T* At(void* data, int64_t index) {
  return static_cast<T*>(HostAddress(data)) + index;
}

std::byte* BytesAt(void* data, DType dtype, int64_t index) {
  return At<std::byte>(data, index * SizeOf(dtype));
}

}  // namespace

int64_t ReadInteger(const void* data, DType dtype, int64_t index) {
  // All integers are numbers of Real.
  return static_cast<int64_t>(ReadElement(data, dtype, index));
}

void WriteInteger(void* data, DType dtype, int64_t index, int64_t value) {
  switch (dtype) {
    case DType::kInt32:
      *At<int32_t>(data, index) = static_cast<int32_t>(value);
      return;
    case DType::kUInt16:
      *At<uint16_t>(data, index) = static_cast<uint16_t>(value);
      return;
    default:
      WriteElement(data, dtype, index, static_cast<Real>(value));
  }
}

void Put(void* data, DType dtype, int64_t index, Real value, WriteMode mode) {
  if (mode == WriteMode::kAccumulate) value += ReadElement(data, dtype, index);
  WriteElement(data, dtype, index, value);
}

void PutInteger(void* data, DType dtype, int64_t index, int64_t value,
                WriteMode mode) {
  if (mode == WriteMode::kAccumulate) {
    value = Plus(value, ReadInteger(data, dtype, index));
  }
  WriteInteger(data, dtype, index, value);
}

void PutAll(const KernelShape& shape, const KernelOutput& out,
            const Reals& values, WriteMode mode) {
  size_t next = 0;
  for (int64_t offset : Offsets(shape, out.strides)) {
    Put(out.data, out.dtype, offset, values[next++], mode);
  }
}

void PutRun(void* data, DType dtype, int64_t first, const Reals& values,
            WriteMode mode) {
  for (size_t i = 0; i < values.size(); ++i) {
    Put(data, dtype, first + static_cast<int64_t>(i), values[i], mode);
  }
}

void CopyElement(void* to, int64_t to_index, const void* from,
                 int64_t from_index, DType dtype) {
  const auto* const source = static_cast<const std::byte*>(HostAddress(from));
  std::memcpy(BytesAt(to, dtype, to_index), source + from_index * SizeOf(dtype),
              static_cast<size_t>(SizeOf(dtype)));
}

void ZeroElement(void* to, int64_t index, DType dtype) {
  std::memset(BytesAt(to, dtype, index), 0, static_cast<size_t>(SizeOf(dtype)));
}

}  // namespace crosshatch::reference
