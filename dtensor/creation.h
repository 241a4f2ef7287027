// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CREATION_H_
#define CROSSHATCH_DTENSOR_CREATION_H_

#include "crosshatch/dtensor/ops/creation.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_CREATION_H_
