// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_ADVERSARIAL_SEED_H_
#define CROSSHATCH_TENSOR_ADVERSARIAL_SEED_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace crosshatch {

/// The seed of adversarial streams (stream.h) that the environment variable
/// CROSSHATCH_ADVERSARIAL_SEED asks for; 0, for none, where it is not set or
/// empty.
/// \error kInvalidArgument for what is no number; runs refuse it before any
///     rank starts
absl::StatusOr<uint64_t> AdversarialSeedOfEnvironment();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_ADVERSARIAL_SEED_H_
