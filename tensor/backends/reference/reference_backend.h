// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_REFERENCE_REFERENCE_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_REFERENCE_REFERENCE_BACKEND_H_

/// \file
/// Device::Reference(): a second device, for tests. Its kernels are the slow
/// and obvious definitions, its memory is its own. What runs on it uses nothing
/// of a device but what DeviceBackend says.

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Its memory has addresses that the host cannot follow
/// (kernels/reference/address.h), as a GPU's.
const DeviceBackend& ReferenceBackend();

/// As ReferenceBackend, but the host can follow its addresses: what the engine
/// `local` asks for, whose ranks read one another's memory.
const DeviceBackend& SharedReferenceBackend();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_REFERENCE_REFERENCE_BACKEND_H_
