// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_H_

#include "crosshatch/dtensor/ops/redistribute.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_H_
