// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_DOCUMENTS_H_
#define CROSSHATCH_TENSOR_OPS_DOCUMENTS_H_

/// \file
/// Documents packed into rows, by their lengths: the keys that their tokens
/// attend to (AttentionOptions::key_ranges), so that attention stays within a
/// document, and each token's position in its document.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Lengths of the documents of each row, in order, possibly 0. The rest of a
/// row is padding.
using DocumentLengths = std::vector<std::vector<int64_t>>;

/// Returns the keys of each token's own document, i32 [rows, length, 2]; none
/// for padding. `causal` of the options applies in addition.
/// \checks that the documents of a row have at most `length` tokens
Tensor DocumentKeys(const DocumentLengths& lengths, int64_t length);
/// Does the same for queries and keys that are packed separately, like those of
/// a decoder and an encoder: document i of a row of queries attends to document
/// i of the row of keys. Not for causal or windowed attention, which counts
/// from the ends of rows.
/// \param length of a row of queries
/// \checks also that both have equally many documents
Tensor DocumentKeys(const DocumentLengths& query_lengths,
                    const DocumentLengths& key_lengths, int64_t length);

/// Returns each token's position in its document, from 0, i32 [rows, length]; 0
/// for padding.
/// \checks as DocumentKeys
Tensor DocumentPositions(const DocumentLengths& lengths, int64_t length);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_DOCUMENTS_H_
