// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/device_backend.h"

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

DeviceBackend::DeviceBackend(Device device, const KernelTable& kernels,
                             bool host_addressable)
    : device_(device), kernels_(kernels), host_addressable_(host_addressable) {
  // An entry left out would otherwise be a null call in the middle of a run.
  const std::vector<std::string> missing = MissingKernels(kernels);
  CH_CHECK(missing.empty())
      << "the backend of " << device << " lacks the kernels "
      << absl::StrJoin(missing, ", ")
      << ": each device fills every table of "
         "tensor/kernels/kernel_table.h";
}

}  // namespace crosshatch
