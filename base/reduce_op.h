// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_REDUCE_OP_H_
#define CROSSHATCH_BASE_REDUCE_OP_H_

/// \file
/// How the values of several ranks become one: the vocabulary that collectives
/// (`comm/`) and layouts (`dtensor/`) share.

#include <optional>

#include "absl/strings/string_view.h"

namespace crosshatch {

enum class ReduceOp {
  kSum,
  kAvg,  ///< The sum divided by the number of ranks.
  kProduct,
  kMin,
  kMax,
};

/// "sum", "avg", "product", "min" or "max".
constexpr absl::string_view ToString(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown";
}

/// The inverse of ToString; nullopt for any other text.
constexpr std::optional<ReduceOp> ParseReduceOp(absl::string_view text) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                      ReduceOp::kMin, ReduceOp::kMax}) {
    if (ToString(op) == text) return op;
  }
  return std::nullopt;
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_REDUCE_OP_H_
