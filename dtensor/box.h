// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_BOX_H_
#define CROSSHATCH_DTENSOR_BOX_H_

#include "crosshatch/dtensor/layout/box.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_BOX_H_
