// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_DEVICES_LOADER_TESTUTIL_H_
#define CROSSHATCH_TESTS_DEVICES_LOADER_TESTUTIL_H_

/// \file
/// Error contexts of failed checks on a device, and tensors that a data
/// loader's thread passes to a rank.

namespace crosshatch {

/// Expects that ToThisDevice moves tensors of a thread without a rank to the
/// current device: values, gradients and memory are right, also for strided and
/// empty tensors. Any other use must end with an error.
void ExpectTakesWhatALoaderMade();

/// Expects that an out-of-range id of an Embedding ends the program with the
/// names of the module and the op, however late the device reports it.
void ExpectNamesThePlaceOfAnIdOutOfRange();

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_DEVICES_LOADER_TESTUTIL_H_
