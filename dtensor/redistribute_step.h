// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_STEP_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_STEP_H_

#include "crosshatch/dtensor/redistribution/step.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_STEP_H_
