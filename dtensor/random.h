// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RANDOM_H_
#define CROSSHATCH_DTENSOR_RANDOM_H_

/// \file
/// Random values by element. A value is a function of a seed, a name, a step
/// and the element's index in the global tensor, and of nothing else. It has
/// the same bits on every mesh, in every layout, on every device, and after a
/// resume. Each rank computes only its own elements.
///
/// Philox4x32-10, keyed by (seed, name), with (element, step) as the counter.
/// Values are computed in float32 and rounded to the tensor's dtype.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns the key of a stream of random numbers.
uint64_t RandomKeyOf(uint64_t seed, absl::string_view name);

/// Fills `t`, plain or distributed but not partial, of a floating point type,
/// with normal values. In place, outside of the graph.
/// \param name names what is filled: a parameter, a dropout layer.
/// \param step distinguishes several draws of one name.
void FillNormal(const Tensor& t, uint64_t seed, absl::string_view name,
                double mean = 0, double stddev = 1, uint64_t step = 0);

/// As above with uniform values in [low, high), multiples of (high - low) /
/// 2^24 above `low`.
void FillUniform(const Tensor& t, uint64_t seed, absl::string_view name,
                 double low = 0, double high = 1, uint64_t step = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RANDOM_H_
