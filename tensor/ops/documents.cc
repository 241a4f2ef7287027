// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/documents.h"

#include <cstddef>
#include <iterator>
#include <limits>

#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"

namespace crosshatch {
namespace {

// Calls each(row, document, begin, length) for the documents in order.
template <typename F>
void ForDocuments(const DocumentLengths& lengths, int64_t row_length,
                  F&& each) {
  for (size_t row = 0; row < lengths.size(); ++row) {
    int64_t begin = 0;
    for (size_t i = 0; i < lengths[row].size(); ++i) {
      const int64_t length = lengths[row][i];
      CH_CHECK(length >= 0 && length <= row_length - begin)
          << "documents of row " << row << ": document " << i << " of "
          << length << " tokens, where " << row_length - begin
          << " are left of a row of " << row_length;
      each(row, i, begin, length);
      begin += length;
    }
  }
}

void CheckLength(const char* name, int64_t length) {
  CH_CHECK(length >= 0 && length <= std::numeric_limits<int32_t>::max())
      << name << ": rows of " << length << " tokens";
}

}  // namespace

Tensor DocumentKeys(const DocumentLengths& lengths, int64_t length) {
  return DocumentKeys(lengths, lengths, length);
}

Tensor DocumentKeys(const DocumentLengths& query_lengths,
                    const DocumentLengths& key_lengths, int64_t length) {
  CheckLength("DocumentKeys", length);
  CH_CHECK_EQ(query_lengths.size(), key_lengths.size())
      << "DocumentKeys: rows of queries and of keys";
  // Ranges of keys by row and document.
  std::vector<std::vector<int32_t>> begins(key_lengths.size());
  for (size_t row = 0; row < key_lengths.size(); ++row) {
    CH_CHECK_EQ(query_lengths[row].size(), key_lengths[row].size())
        << "DocumentKeys: documents of queries and of keys in row " << row;
    int64_t begin = 0;
    for (const int64_t count : key_lengths[row]) {
      CH_CHECK(count >= 0 &&
               count <= std::numeric_limits<int32_t>::max() - begin)
          << "DocumentKeys: a document of " << count << " keys in row " << row;
      begins[row].push_back(static_cast<int32_t>(begin));
      begin += count;
    }
    begins[row].push_back(static_cast<int32_t>(begin));
  }
  std::vector<int32_t> ranges(query_lengths.size() *
                              static_cast<size_t>(length) * 2);
  ForDocuments(query_lengths, length,
               [&](size_t row, size_t document, int64_t begin, int64_t count) {
                 auto at = row * static_cast<size_t>(length) +
                           static_cast<size_t>(begin);
                 for (int64_t i = 0; i < count; ++i, ++at) {
                   ranges[2 * at] = begins[row][document];
                   ranges[2 * at + 1] = begins[row][document + 1];
                 }
               });
  return FromValues<int32_t>({std::ssize(query_lengths), length, 2},
                             absl::MakeConstSpan(ranges));
}

Tensor DocumentPositions(const DocumentLengths& lengths, int64_t length) {
  CheckLength("DocumentPositions", length);
  std::vector<int32_t> positions(lengths.size() * static_cast<size_t>(length));
  ForDocuments(
      lengths, length,
      [&](size_t row, size_t /*document*/, int64_t begin, int64_t count) {
        const auto at =
            row * static_cast<size_t>(length) + static_cast<size_t>(begin);
        for (int64_t i = 0; i < count; ++i) {
          positions[at + static_cast<size_t>(i)] = static_cast<int32_t>(i);
        }
      });
  return FromValues<int32_t>({std::ssize(lengths), length},
                             absl::MakeConstSpan(positions));
}

}  // namespace crosshatch
