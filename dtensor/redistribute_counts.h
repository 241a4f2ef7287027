// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_COUNTS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_COUNTS_H_

#include "crosshatch/dtensor/redistribution/counts.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_COUNTS_H_
