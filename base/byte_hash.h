// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_BYTE_HASH_H_
#define CROSSHATCH_BASE_BYTE_HASH_H_

/// \file
/// The hash for values that processes compare or use as names. Tables use
/// absl::Hash, whose values differ from run to run. Checkpoints have a hash of
/// their own (checkpoint/content_hash.h), which does not depend on the order in
/// which elements are read.

#include <cstdint>

namespace crosshatch {

/// Returns the hash of `count` bytes, continuing from `hash`. It is the same in
/// every process, on machines of one byte order. Hashing bytes in several calls
/// gives the same result as in one call, if each call but the last passes a
/// multiple of 8 bytes.
uint64_t HashBytes(uint64_t hash, const void* bytes, int64_t count);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_BYTE_HASH_H_
