// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_
#define CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_

#include "crosshatch/dtensor/ops/row_exchange.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_
