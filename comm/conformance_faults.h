// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_FAULTS_H_
#define CROSSHATCH_COMM_CONFORMANCE_FAULTS_H_

/// \file
/// The fault tests of the conformance suite.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/conformance_engine.h"

namespace crosshatch::internal {

struct FaultTest {
  std::string name;
  std::function<void()> body;
};

/// Returns the fault tests for `ranks` ranks; none for a single rank.
std::vector<FaultTest> FaultTests(
    std::shared_ptr<const ConformanceEngine> engine, int ranks);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_FAULTS_H_
