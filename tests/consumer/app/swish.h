// SPDX-License-Identifier: Apache-2.0
#ifndef CONSUMER_APP_SWISH_H_
#define CONSUMER_APP_SWISH_H_

#include "crosshatch/tensor/tensor.h"

namespace consumer {

/// Returns x / (1 + e^(-slope * x)) of a float32 tensor on a CUDA device.
crosshatch::Tensor Swish(const crosshatch::Tensor& x, float slope);

}  // namespace consumer

#endif  // CONSUMER_APP_SWISH_H_
