// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_ATTENTION_KEYS_H_
#define CROSSHATCH_TENSOR_KERNELS_ATTENTION_KEYS_H_

/// \file
/// The run of keys that a query attends to, apart from a bool mask.
///
/// Scores are kept relative to the largest value of a floating point mask over
/// the query's keys (relative to 0 if that is -inf), which changes no
/// probability. Otherwise, with a mask of -1e9 for all keys, the log-sum-exp of
/// the scores would have no digits left for anything else.

#include <cstdint>

#include "crosshatch/tensor/device_function.h"
#include "crosshatch/tensor/kernels/attention_kernels.h"

namespace crosshatch::internal {

/// Keys [begin, end); none where end <= begin.
struct KeyRun {
  int64_t begin = 0;
  int64_t end = 0;

  CH_HOST_DEVICE bool empty() const { return end <= begin; }
};

/// Returns a query's range in the args' key_ranges, which must not be null.
CH_HOST_DEVICE inline const int32_t* KeyRangeOf(const AttentionArgs& args,
                                                int64_t batch, int64_t query) {
  return args.key_ranges + batch * args.key_ranges_batch_stride + 2 * query;
}

/// Returns the keys that `query` attends to by its position, restricted to
/// `range`.
/// \returns within 0 .. kv_len, or an empty run
CH_HOST_DEVICE inline KeyRun KeysOf(const AttentionArgs& args, int64_t query,
                                    KeyRun range) {
  const int64_t own = query + args.kv_len - args.q_len;
  KeyRun keys = {0, args.kv_len};
  if (args.causal && own + 1 < keys.end) keys.end = own + 1;
  if (args.window > 0 && own - args.window + 1 > 0) {
    keys.begin = own - args.window + 1;
  }
  if (range.begin > keys.begin) keys.begin = range.begin;
  if (range.end < keys.end) keys.end = range.end;
  return keys;
}

/// Returns the index, for dropout, of the probability of the first key in the
/// batch's probabilities. The following keys have consecutive indices.
CH_HOST_DEVICE inline int64_t FirstProbability(const AttentionArgs& args,
                                               int64_t batch, int64_t head,
                                               int64_t query) {
  const int64_t row = args.first_row + batch;
  const int64_t global_head = row * args.total_heads + args.first_head + head;
  return (global_head * args.q_len + query) * args.kv_len;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_ATTENTION_KEYS_H_
