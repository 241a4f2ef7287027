// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_STATUS_MACROS_H_
#define CROSSHATCH_BASE_STATUS_MACROS_H_

/// \file
/// Propagation of absl::Status and absl::StatusOr.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Returns from the enclosing function with the status of `expression` unless
/// it is OK.
#define CH_RETURN_IF_ERROR(expression)                              \
  do {                                                              \
    if (::absl::Status ch_status = (expression); !ch_status.ok()) { \
      return ch_status;                                             \
    }                                                               \
  } while (false)

#define CH_INTERNAL_CONCAT2(a, b) a##b
#define CH_INTERNAL_CONCAT(a, b) CH_INTERNAL_CONCAT2(a, b)
#define CH_INTERNAL_ASSIGN_OR_RETURN(result, lhs, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return std::move(result).status();        \
  lhs = *std::move(result)

/// Assigns the value of a StatusOr `expression` to `lhs` (a declaration or an
/// lvalue), or returns its status from the enclosing function.
#define CH_ASSIGN_OR_RETURN(lhs, ...)                                          \
  CH_INTERNAL_ASSIGN_OR_RETURN(CH_INTERNAL_CONCAT(ch_status_or_, __COUNTER__), \
                               lhs, (__VA_ARGS__))

#endif  // CROSSHATCH_BASE_STATUS_MACROS_H_
