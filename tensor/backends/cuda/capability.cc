// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/capability.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace crosshatch::internal {
namespace {

// Tensor cores with bfloat16. third_party/cuda/find_toolkit.py requires it,
// too.
constexpr int kLeast = 80;

std::string Text(int capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

}  // namespace

absl::Status CheckCapability(int device, int capability, int oldest) {
  if (capability >= oldest) return absl::OkStatus();
  const std::string has = absl::StrCat(
      "cuda:", device, " has compute capability ", Text(capability));
  return absl::FailedPreconditionError(
      capability < kLeast
          ? absl::StrCat(has, ", and the kernels need ", Text(kLeast),
                         " or later")
          : absl::StrCat(has, ", and this build has code for ", Text(oldest),
                         " and later: build it with "
                         "CROSSHATCH_CUDA_ARCHITECTURES=",
                         capability));
}

}  // namespace crosshatch::internal
