// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/settings.h"

#include "absl/strings/str_cat.h"

namespace crosshatch::fsdp {

absl::Status CheckOptions(const char* what, const PrefetchOptions& prefetch,
                          const ReductionOptions& reduction) {
  const auto invalid = [what](const char* option, auto value,
                              const char* must) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", option, " ", value, " must ", must));
  };
  constexpr char kNotNegative[] = "not be negative";
  constexpr char kPositive[] = "be positive";
  if (prefetch.forward < 0) {
    return invalid("prefetch.forward", prefetch.forward, kNotNegative);
  }
  if (prefetch.backward < 0) {
    return invalid("prefetch.backward", prefetch.backward, kNotNegative);
  }
  if (prefetch.bytes.value_or(0) < 0) {
    return invalid("prefetch.bytes", *prefetch.bytes, kNotNegative);
  }
  if (reduction.buffers < 1) {
    return invalid("reduction.buffers", reduction.buffers, kPositive);
  }
  if (!(reduction.divide_factor.value_or(1) > 0)) {
    return invalid("reduction.divide_factor", *reduction.divide_factor,
                   kPositive);
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::fsdp
