// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CROSS_MESH_H_
#define CROSSHATCH_DTENSOR_CROSS_MESH_H_

#include "crosshatch/dtensor/ops/cross_mesh.h"  // IWYU pragma: export

#endif  // CROSSHATCH_DTENSOR_CROSS_MESH_H_
