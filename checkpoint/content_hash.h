// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_CONTENT_HASH_H_
#define CROSSHATCH_CHECKPOINT_CONTENT_HASH_H_

/// \file
/// A hash of what a tensor holds that does not depend on how it is spread.
///
/// It is the sum, modulo 2^64, over all elements of a mixed word of (index in
/// the global tensor, bits of the element). So the ranks hash what they hold,
/// each element on one of them, and the sum of their sums is the tensor's, on
/// any mesh and in any order.
///
/// It finds what disks, networks and programs do by accident: flipped bits,
/// pieces that are missing, taken twice, in the wrong place or of another
/// checkpoint. Such a change goes unnoticed with a probability of about 2^-64.
/// It does not protect from somebody who changes a file on purpose: sums of
/// this kind can be made to meet.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "crosshatch/dtensor/box.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// The part of the hash that `count` elements of `element_bytes` (1, 2, 4 or 8)
/// each make, which lie one after the other from `data` on and have the indices
/// first, first + 1, ... in the row-major order of the global tensor.
uint64_t HashRun(const void* data, int64_t element_bytes, int64_t first,
                 int64_t count);

/// The part of the hash that the elements in `box` of a tensor of `sizes` make.
/// \param data the box, dense and row-major
/// \pre the box lies in the tensor
uint64_t HashBox(const void* data, int64_t element_bytes, ShapeView sizes,
                 const Box& box);

/// Hashes a text, to the same number on every machine.
uint64_t HashText(absl::string_view text);

/// Sixteen hexadecimal digits.
std::string HashToHex(uint64_t hash);
/// Whether `text` is what HashToHex gives; then `hash` is set.
bool HashFromHex(absl::string_view text, uint64_t& hash);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_CONTENT_HASH_H_
