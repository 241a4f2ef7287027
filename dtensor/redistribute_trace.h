// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_

#include "crosshatch/dtensor/debug/redistribute_trace.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_
