// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_BYTE_HASH_H_
#define CROSSHATCH_BASE_BYTE_HASH_H_

#include <cstdint>

namespace crosshatch {

/// A hash of what `hash` is one of, and after that of `count` bytes: the same
/// in every process, on machines of one byte order. Bytes that come in several
/// calls give what they give in one where all calls but the last have whole
/// words of 8 bytes.
uint64_t HashBytes(uint64_t hash, const void* bytes, int64_t count);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_BYTE_HASH_H_
