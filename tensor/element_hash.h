// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_ELEMENT_HASH_H_
#define CROSSHATCH_TENSOR_ELEMENT_HASH_H_

#include <string>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns a hash of the bits of all elements of `local`, in row-major order,
/// as text that ranks can compare: the same on every device, for any strides.
/// Waits for the work that computes the elements, and reads them in pieces of a
/// few MiB.
/// \param local not distributed.
/// \returns "" in a dry run, which has no elements.
std::string HashOfElements(const Tensor& local);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_ELEMENT_HASH_H_
