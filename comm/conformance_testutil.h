// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_
#define CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_

/// \file
/// The tests that every engine passes, the parts that its capabilities name.
/// Its test file is its registration:
///
///     const bool registered = RegisterCommunicatorConformanceTests({
///         .name = "Local",
///         .run = [](int ranks, auto fn, const auto& options) { ... }});

#include "crosshatch/comm/conformance_engine.h"

namespace crosshatch {

/// Registers the suite with GoogleTest.
/// \returns true, so that a static variable's initializer can call it.
bool RegisterCommunicatorConformanceTests(ConformanceEngine engine);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_
