// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/element_hash.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

std::string HashOfElements(const Tensor& local) {
  if (local.device().is_meta()) return "";
  const NoGrad no_grad;
  const Tensor row_major = Contiguous(local);
  const int64_t element = SizeOf(row_major.dtype());
  // Bounds the memory if the host must copy the elements.
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  auto hash = static_cast<uint64_t>(row_major.numel() * element);
  for (int64_t first = 0; first < row_major.numel();) {
    const int64_t count =
        std::min(row_major.numel() - first, kMostBytes / element);
    const HostView view(MakeView(row_major.storage(),
                                 row_major.storage_offset() + first, {count},
                                 {1}, row_major.dtype()));
    hash = HashBytes(hash, view.data(), count * element);
    first += count;
  }
  return absl::StrCat(absl::Hex(hash));
}

}  // namespace crosshatch
