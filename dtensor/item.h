// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_ITEM_H_
#define CROSSHATCH_DTENSOR_ITEM_H_

#include "crosshatch/dtensor/ops/item.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_ITEM_H_
