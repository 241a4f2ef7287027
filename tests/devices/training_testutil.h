// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_DEVICES_TRAINING_TESTUTIL_H_
#define CROSSHATCH_TESTS_DEVICES_TRAINING_TESTUTIL_H_

#include <cstdint>

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Expects that five steps of a small model on `backend` have the CPU's losses,
/// within the bound of tests/conformance.
/// \param adversarial_seed of the backend's streams; 0 is not adversarial
void ExpectTrainsAsOnTheCpu(const DeviceBackend& backend,
                            uint64_t adversarial_seed = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_DEVICES_TRAINING_TESTUTIL_H_
