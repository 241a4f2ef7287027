// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RANDOM_H_
#define CROSSHATCH_DTENSOR_RANDOM_H_

#include "crosshatch/dtensor/ops/random.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_RANDOM_H_
