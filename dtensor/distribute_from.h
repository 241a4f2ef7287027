// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISTRIBUTE_FROM_H_
#define CROSSHATCH_DTENSOR_DISTRIBUTE_FROM_H_

#include "crosshatch/dtensor/ops/distribute_from.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_DISTRIBUTE_FROM_H_
