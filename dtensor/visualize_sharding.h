// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_VISUALIZE_SHARDING_H_
#define CROSSHATCH_DTENSOR_VISUALIZE_SHARDING_H_

#include "crosshatch/dtensor/debug/visualize_sharding.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_VISUALIZE_SHARDING_H_
