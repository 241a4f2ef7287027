// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_DEVICES_LOADER_TESTUTIL_H_
#define CROSSHATCH_TESTS_DEVICES_LOADER_TESTUTIL_H_

/// \file
/// Where a failed check on a device was, and what a loader's thread gives to a
/// rank of a device.

namespace crosshatch {

/// Expects of the device of the calling thread's context that what a thread
/// without a rank made is brought there by ToThisDevice alone: values,
/// gradients and memory are right, of strided tensors and of none, and any
/// other use ends with a message that says so.
void ExpectTakesWhatALoaderMade();

/// Expects that an id which an Embedding has no row for ends the program at
/// the module and the op that looked it up, however late that is noticed.
void ExpectNamesThePlaceOfAnIdOutOfRange();

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_DEVICES_LOADER_TESTUTIL_H_
