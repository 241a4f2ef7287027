// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OPS_ITEM_H_
#define CROSSHATCH_DTENSOR_OPS_ITEM_H_

/// \file
/// The value of a tensor of one element: a loss, a norm, a count.

#include <cstdint>

#include "absl/status/statusor.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The one element of `t`, plain or distributed, converted to double. What is
/// distributed all ranks of the mesh call for alike, and each gets the value:
/// pending reductions are done, and the rank that has the element sends it.
/// Waits for the current stream. Outside of the graph.
///
/// Checks that `t` has one element.
/// \error the rank's first error where it is poisoned, by this call or before;
/// kFailedPrecondition in a dry run, which has no values.
absl::StatusOr<double> Item(const Tensor& t);

/// As above without a conversion: checks that `t` is of dtype DTypeOf<T>. For
/// float, double, int32_t and int64_t.
template <typename T>
absl::StatusOr<T> Item(const Tensor& t);

extern template absl::StatusOr<float> Item<float>(const Tensor& t);
extern template absl::StatusOr<double> Item<double>(const Tensor& t);
extern template absl::StatusOr<int32_t> Item<int32_t>(const Tensor& t);
extern template absl::StatusOr<int64_t> Item<int64_t>(const Tensor& t);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OPS_ITEM_H_
