// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_ELEMENT_HASH_H_
#define CROSSHATCH_TENSOR_ELEMENT_HASH_H_

#include <string>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// A hash of the bits of all elements of `local`, in row-major order, as text
/// that ranks can compare: the same on every device, and whatever the strides.
/// It waits for what computes them, and reads them a few MiB at a time.
/// \param local not distributed.
/// \returns "" in a dry run, which has no elements.
std::string HashOfElements(const Tensor& local);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_ELEMENT_HASH_H_
