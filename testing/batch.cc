// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/batch.h"

#include <algorithm>
#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {

Tensor SmallIntegers(const Shape& sizes, int64_t salt) {
  std::vector<float> values(static_cast<size_t>(NumElements(sizes)));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto mixed = (static_cast<int64_t>(i) + 1) * (salt + 7);
    values[i] = static_cast<float>(mixed % 5 % 3 - 1);
  }
  return FromValues<float>(sizes, values);
}

Tensor BatchOf(int rank, int size, int64_t salt, int64_t dim) {
  constexpr int64_t kRows = 5;
  const Tensor batch = Slice(SmallIntegers({kRows, dim + 1}, salt), 1, 0, dim);
  const int64_t chunk = (kRows + size - 1) / size;
  return Contiguous(Slice(batch, 0, std::min(kRows, rank * chunk),
                          std::min(kRows, (rank + 1) * chunk)));
}

}  // namespace crosshatch
