// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_H_

#include "crosshatch/dtensor/layout/layout.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_LAYOUT_H_
