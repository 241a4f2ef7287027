// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_
#define CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_

/// \file
/// The tests that every engine and every data plane passes, in two parts. A
/// test file is a registration:
///
///     const bool registered = RegisterCommunicatorConformanceTests({
///         .name = "Local",
///         .run = [](int ranks, auto fn, const auto& options) { ... }});
///
/// For a data plane of one's own EngineOfPlanes (data_plane_testutil.h) makes
/// the engine.

#include "crosshatch/comm/conformance_engine.h"

namespace crosshatch {

/// Registers tests of agreement and failures: refused, counted and logged
/// collectives, mismatches, late and missing ranks, errors, exchanges.
/// \returns true, so that a static variable's initializer can call it.
bool RegisterAgreementConformanceTests(ConformanceEngine engine);

/// Registers tests of data movement: every kind, dtype, reduction, layout and
/// count, groups and streams.
bool RegisterMovementConformanceTests(ConformanceEngine engine);

/// Registers both parts.
bool RegisterCommunicatorConformanceTests(ConformanceEngine engine);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_CONFORMANCE_TESTUTIL_H_
