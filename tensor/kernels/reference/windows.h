// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_WINDOWS_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_WINDOWS_H_

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/kernels/window_kernels.h"

namespace crosshatch::reference {

/// For each element of the windows, row-major, the element of the images that
/// it is; -1 for a zero.
std::vector<int64_t> ElementsOfWindows(const WindowsArgs& args);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_WINDOWS_H_
