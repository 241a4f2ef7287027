// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_VERIFY_H_
#define CROSSHATCH_DTENSOR_VERIFY_H_

#include "crosshatch/dtensor/debug/verify.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_VERIFY_H_
