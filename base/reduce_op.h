// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_REDUCE_OP_H_
#define CROSSHATCH_BASE_REDUCE_OP_H_

/// \file
/// ReduceOp: how values of several ranks are reduced to one, in collectives
/// (`comm/`) and layouts (`dtensor/`).

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

/// Returns the op that ToString prints as `text`, or nullopt.
constexpr std::optional<ReduceOp> ParseReduceOp(absl::string_view text) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                      ReduceOp::kMin, ReduceOp::kMax}) {
    if (ToString(op) == text) return op;
  }
  return std::nullopt;
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_REDUCE_OP_H_
