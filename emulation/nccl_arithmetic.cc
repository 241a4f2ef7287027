// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/nccl_arithmetic.h"

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "crosshatch/base/check.h"

namespace crosshatch::emulation {
namespace {

template <typename T>
T Step(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclSum:
    case ncclAvg:
      return static_cast<T>(a + b);
    case ncclProd:
      return static_cast<T>(a * b);
    // As in fmax and fmin, NaN is ignored.
    case ncclMax:
      return a < b || a != a ? b : a;
    case ncclMin:
      return b < a || a != a ? b : a;
  }
  return a;
}

template <typename T>
T Read(const std::vector<std::byte>& from, size_t index) {
  T value;
  std::memcpy(&value, from.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Reduce(const std::vector<std::vector<std::byte>>& inputs, size_t begin,
            size_t count, ncclRedOp_t op, std::byte* out) {
  const size_t n = inputs.size();
  for (size_t i = 0; i < count; ++i) {
    // The parts of the ring: each sum ends at the rank of the same index.
    const size_t first = (i * n / count + 1) % n;
    T value = Read<T>(inputs[first], begin + i);
    for (size_t k = 1; k < n; ++k) {
      value = Step(op, value, Read<T>(inputs[(first + k) % n], begin + i));
    }
    if (op == ncclAvg) value = static_cast<T>(value / static_cast<T>(n));
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

size_t NcclBytes(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
  }
  CH_CHECK(false) << "NCCL has no type " << static_cast<int>(type);
  return 0;
}

void ReduceAsNccl(const std::vector<std::vector<std::byte>>& inputs,
                  size_t begin, size_t count, ncclDataType_t type,
                  ncclRedOp_t op, std::byte* out) {
  switch (type) {
    case ncclUint8:
      return Reduce<uint8_t>(inputs, begin, count, op, out);
    case ncclInt32:
      // Sums and products may wrap as unsigned integers; extremes need the
      // sign.
      return op == ncclMax || op == ncclMin
                 ? Reduce<int32_t>(inputs, begin, count, op, out)
                 : Reduce<uint32_t>(inputs, begin, count, op, out);
    case ncclInt64:
      return op == ncclMax || op == ncclMin
                 ? Reduce<int64_t>(inputs, begin, count, op, out)
                 : Reduce<uint64_t>(inputs, begin, count, op, out);
    case ncclFloat16:
      return Reduce<Eigen::half>(inputs, begin, count, op, out);
    case ncclFloat32:
      return Reduce<float>(inputs, begin, count, op, out);
    case ncclFloat64:
      return Reduce<double>(inputs, begin, count, op, out);
    case ncclBfloat16:
      return Reduce<Eigen::bfloat16>(inputs, begin, count, op, out);
  }
}

}  // namespace crosshatch::emulation
