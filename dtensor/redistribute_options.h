// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_OPTIONS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_OPTIONS_H_

#include "crosshatch/dtensor/redistribution/options.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_OPTIONS_H_
