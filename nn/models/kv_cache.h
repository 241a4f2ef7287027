// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODELS_KV_CACHE_H_
#define CROSSHATCH_NN_MODELS_KV_CACHE_H_

/// \file
/// KvCache: the keys and values of past positions, for generation.

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The keys and values of one batch of sequences, with an entry for each
/// attention, in the layout that the attention computes: each rank has those of
/// its own heads.
///
/// \threadsafety the rank's thread only.
class KvCache {
 public:
  /// \param capacity the maximal number of positions.
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  int64_t capacity() const { return capacity_; }
  /// Returns the number of positions so far.
  int64_t length() const { return length_; }

  /// \name For the model
  /// @{

  struct Entry {
    Tensor keys;    ///< [B, length, Hkv, D]; undefined at length 0.
    Tensor values;  ///< The same.
  };
  /// Checks that `count` more positions fit.
  void CheckRoom(int64_t count) const;
  /// Appends the keys and values [B, T, Hkv, D] of the attention `index`, and
  /// returns all of them.
  Entry Append(size_t index, const Tensor& keys, const Tensor& values);
  /// Called when all attentions have appended `count` positions.
  void Advance(int64_t count) { length_ += count; }
  /// @}

 private:
  const int64_t capacity_;
  int64_t length_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODELS_KV_CACHE_H_
