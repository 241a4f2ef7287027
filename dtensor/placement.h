// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_PLACEMENT_H_
#define CROSSHATCH_DTENSOR_PLACEMENT_H_

#include "crosshatch/dtensor/layout/placement.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_PLACEMENT_H_
