// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/kv_cache.h"

#include <algorithm>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {

void KvCache::CheckRoom(int64_t count) const {
  CH_CHECK(length_ + count <= capacity_)
      << "a KvCache of " << capacity_ << " positions that has " << length_
      << " gets " << count << " more";
}

KvCache::Entry KvCache::Append(size_t index, const Tensor& keys,
                               const Tensor& values) {
  CH_CHECK(!keys.requires_grad() && !values.requires_grad())
      << "a KvCache keeps no graph; run the model in NoGrad";
  entries_.resize(std::max(entries_.size(), index + 1));
  Entry& entry = entries_[index];
  if (!entry.keys.defined()) {
    entry = {keys, values};
  } else {
    CH_CHECK_EQ(entry.keys.size(1), length_) << "attention " << index;
    entry = {Cat({entry.keys, keys}, 1), Cat({entry.values, values}, 1)};
  }
  return entry;
}

}  // namespace crosshatch::nn
