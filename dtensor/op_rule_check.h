// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_
#define CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_

#include "crosshatch/dtensor/debug/op_rule_check.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_OP_RULE_CHECK_H_
