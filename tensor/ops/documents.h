// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_DOCUMENTS_H_
#define CROSSHATCH_TENSOR_OPS_DOCUMENTS_H_

/// \file
/// Documents packed into rows, one after the other, by their lengths: which
/// keys their tokens see (AttentionOptions::key_ranges), so that attention
/// stays within a document, and where in it each token stands.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Lengths of the documents of each row, in order; 0 is fine. What they leave
/// over of a row is padding.
using DocumentLengths = std::vector<std::vector<int64_t>>;

/// The keys of each token's own document, i32 [rows, length, 2]; of padding
/// none. Attention is causal besides where the options say so.
/// \checks that the documents of a row have at most `length` tokens
Tensor DocumentKeys(const DocumentLengths& lengths, int64_t length);
/// The same for queries and keys that are packed each for itself, as those of a
/// decoder and an encoder: document i of a row of queries sees document i of
/// the row of keys. Not with a causal or windowed attention, which counts from
/// the ends of rows.
/// \param length of a row of queries
/// \checks also that there are as many documents of either
Tensor DocumentKeys(const DocumentLengths& query_lengths,
                    const DocumentLengths& key_lengths, int64_t length);

/// Each token's place in its document, from 0 on, i32 [rows, length]; of
/// padding 0.
/// \checks as DocumentKeys
Tensor DocumentPositions(const DocumentLengths& lengths, int64_t length);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_DOCUMENTS_H_
