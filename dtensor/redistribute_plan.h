// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_PLAN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_PLAN_H_

#include "crosshatch/dtensor/redistribution/plan.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_PLAN_H_
