// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_IMPLICIT_REDISTRIBUTION_H_
#define CROSSHATCH_DTENSOR_IMPLICIT_REDISTRIBUTION_H_

#include "crosshatch/dtensor/redistribution/implicit_redistribution.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_IMPLICIT_REDISTRIBUTION_H_
