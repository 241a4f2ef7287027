// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_COMM_ORIGIN_H_
#define CROSSHATCH_DTENSOR_COMM_ORIGIN_H_

#include "crosshatch/dtensor/redistribution/comm_origin.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_COMM_ORIGIN_H_
