// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_GRAD_LAYOUT_H_
#define CROSSHATCH_DTENSOR_GRAD_LAYOUT_H_

#include "crosshatch/dtensor/layout/grad_layout.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_GRAD_LAYOUT_H_
