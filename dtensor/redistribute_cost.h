// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_COST_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_COST_H_

#include "crosshatch/dtensor/redistribution/cost.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_COST_H_
