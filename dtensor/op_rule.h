// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OP_RULE_H_
#define CROSSHATCH_DTENSOR_OP_RULE_H_

#include "crosshatch/dtensor/rules/op_rule.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_OP_RULE_H_
