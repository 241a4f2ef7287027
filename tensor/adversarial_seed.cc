// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/adversarial_seed.h"

#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace crosshatch {

absl::StatusOr<uint64_t> AdversarialSeedOfEnvironment() {
  const char* const text = std::getenv("CROSSHATCH_ADVERSARIAL_SEED");
  uint64_t seed = 0;
  if (text == nullptr || *text == '\0') return seed;
  if (!absl::SimpleAtoi(text, &seed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CROSSHATCH_ADVERSARIAL_SEED=", text,
                     " in the environment: it takes an integer from 0, which "
                     "stands for none, to 18446744073709551615"));
  }
  return seed;
}

}  // namespace crosshatch
