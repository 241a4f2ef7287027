// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LOCAL_MAP_H_
#define CROSSHATCH_DTENSOR_LOCAL_MAP_H_

#include "crosshatch/dtensor/ops/local_map.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_LOCAL_MAP_H_
