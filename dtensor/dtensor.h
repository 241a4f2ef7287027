// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_H_
#define CROSSHATCH_DTENSOR_DTENSOR_H_

#include "crosshatch/dtensor/ops/dtensor.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_DTENSOR_H_
