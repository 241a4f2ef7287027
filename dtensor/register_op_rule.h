// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REGISTER_OP_RULE_H_
#define CROSSHATCH_DTENSOR_REGISTER_OP_RULE_H_

#include "crosshatch/dtensor/dispatch/register_op_rule.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_REGISTER_OP_RULE_H_
