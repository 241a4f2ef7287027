// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_CONTENT_HASH_H_
#define CROSSHATCH_CHECKPOINT_CONTENT_HASH_H_

/// \file
/// A hash of a tensor's content that does not depend on its distribution.
///
/// The hash is the sum, modulo 2^64, of a mixed word of (index in the global
/// tensor, bits of the element) over all elements. So each rank can hash the
/// elements of its shards, and the sum of these hashes is the tensor's hash on
/// any mesh and in any order.
///
/// It detects accidental errors of disks, networks and programs: flipped bits,
/// and pieces that are missing, duplicated, misplaced or from another
/// checkpoint. An error remains undetected with a probability of about 2^-64.
/// It does not protect against deliberate changes: collisions of such sums can
/// be constructed.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// Returns the contribution of `count` consecutive elements at `data` to the
/// hash.
/// \param element_bytes 1, 2, 4 or 8.
/// \param first row-major index of the first element in the global tensor.
uint64_t HashRun(const void* data, int64_t element_bytes, int64_t first,
                 int64_t count);

/// Returns the contribution of the elements in `box` of a tensor of `sizes`.
/// \param data the elements of the box, dense and row-major.
/// \pre the box is within the tensor.
uint64_t HashBox(const void* data, int64_t element_bytes, ShapeView sizes,
                 const Box& box);

/// Returns the hash of a text, which is the same on every machine.
uint64_t HashText(absl::string_view text);

/// Returns the hash as sixteen hexadecimal digits.
std::string HashToHex(uint64_t hash);
/// Returns whether `text` is a result of HashToHex; if so, sets `hash`.
bool HashFromHex(absl::string_view text, uint64_t& hash);
/// The same for several hashes, one after another.
std::string HashesToHex(absl::Span<const uint64_t> hashes);
bool HashesFromHex(absl::string_view text, std::vector<uint64_t>& hashes);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_CONTENT_HASH_H_
