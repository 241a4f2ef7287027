// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/device_backend.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

DeviceBackend::DeviceBackend(Device device, const KernelTable& kernels,
                             bool host_addressable)
    : device_(device), kernels_(kernels), host_addressable_(host_addressable) {
  // A missing entry would be a null call in the middle of a run.
  const std::vector<std::string> missing = MissingKernels(kernels);
  CH_CHECK(missing.empty())
      << "the backend of " << device << " lacks the kernels "
      << absl::StrJoin(missing, ", ")
      << ": a device defines every kernel that "
         "tensor/kernels/kernel_table.h lists";
}

absl::Status DeviceBackend::ReachPeer(const DeviceBackend& peer) const {
  for (const DeviceBackend* const backend : {this, &peer}) {
    if (backend->host_addressable()) continue;
    std::ostringstream device;
    device << backend->device();
    return absl::InvalidArgumentError(
        absl::StrCat("the host cannot address the memory of ", device.str()));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch
