// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_FINGERPRINT_H_
#define CROSSHATCH_COMM_FINGERPRINT_H_

/// \file
/// The description of a collective that ranks compare before data move.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/comm/collective.h"

namespace crosshatch {

/// A collective without its memory, or an exchange.
struct Fingerprint {
  /// Negative for an exchange, which `label` describes.
  int64_t sequence = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  double scale = 1.0;
  int root = 0;
  std::string label;
  std::shared_ptr<const std::string> about;
  /// Elements of each list.
  absl::InlinedVector<int64_t, 4> send;
  absl::InlinedVector<int64_t, 4> recv;

  /// Makes this the fingerprint of `collective`. Keeps its allocations.
  void Assign(const Collective& collective, int64_t sequence);
};

/// Returns e.g. "all_reduce #4 'grad' (f32, sum)". The functions below, which
/// describe what went wrong between ranks, add `about` in brackets, once.
std::string Describe(const Fingerprint& fingerprint);
/// Returns Describe(fingerprint), followed by `about` in brackets if it has
/// one.
std::string DescribeInFull(const Fingerprint& fingerprint);

/// Returns which members of a group have come to a collective, for messages:
/// "rank 0 came to barrier #4 'b', rank 1 did not come". Of a large group it
/// names a few.
/// \param world_ranks of the members, by index.
/// \param came one fingerprint a member, by index; null if it did not come.
/// \param before the text that the result follows. An `about` that it contains
///     is not repeated.
std::string DescribeArrivals(absl::Span<const int> world_ranks,
                             absl::Span<const Fingerprint* const> came,
                             absl::string_view before = "");

/// Compares what the members of one group have issued: the fields that must be
/// equal, and for each pair of ranks the counts that one sends and the other
/// expects.
/// \param group names it in the message, e.g. "group 'tp' (ranks 0, 1)".
/// \param world_ranks of the members, by index.
/// \param members one fingerprint a member, by index.
/// \error kFailedPrecondition naming for each difference the ranks and their
///     values.
absl::Status CheckAgreement(const std::string& group,
                            absl::Span<const int> world_ranks,
                            absl::Span<const Fingerprint* const> members);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_FINGERPRINT_H_
