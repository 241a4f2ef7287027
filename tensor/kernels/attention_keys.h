// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_ATTENTION_KEYS_H_
#define CROSSHATCH_TENSOR_KERNELS_ATTENTION_KEYS_H_

/// \file
/// Which keys a query of attention sees, but for a bool mask: a run of them.
///
/// Scores are kept less the largest that a floating point mask has for keys
/// that the query sees (nothing, where that is -inf), which changes no
/// probability: where a mask has -1e9 for all of them, the log-sum-exp, which
/// is then of those scores, would have no digit left for anything else.

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

/// Points to a query's range in the args' key_ranges, which are there.
CH_HOST_DEVICE inline const int32_t* KeyRangeOf(const AttentionArgs& args,
                                                int64_t batch, int64_t query) {
  return args.key_ranges + batch * args.key_ranges_batch_stride + 2 * query;
}

/// What `query` sees by its place, and of that what `range` has.
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

/// The index of a probability in all of the batch's, which dropout goes by:
/// that of the first key, of whose successors each is one more.
CH_HOST_DEVICE inline int64_t FirstProbability(const AttentionArgs& args,
                                               int64_t batch, int64_t head,
                                               int64_t query) {
  const int64_t row = args.first_row + batch;
  const int64_t global_head = row * args.total_heads + args.first_head + head;
  return (global_head * args.q_len + query) * args.kv_len;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_ATTENTION_KEYS_H_
