// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_OPS_H_
#define CROSSHATCH_TENSOR_OPS_OPS_H_

/// \file
/// All ops.

#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/conv.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/float8.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/index.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/scan_and_sort.h"
#include "crosshatch/tensor/ops/view.h"

#endif  // CROSSHATCH_TENSOR_OPS_OPS_H_
