// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_ROWS_OF_H_
#define CROSSHATCH_DTENSOR_ROWS_OF_H_

#include "crosshatch/dtensor/ops/rows_of.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_ROWS_OF_H_
