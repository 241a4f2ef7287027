// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_FAULTS_H_
#define CROSSHATCH_COMM_CONFORMANCE_FAULTS_H_

/// \file
/// The part of the conformance suite in which something goes wrong.

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

/// The fault tests for `ranks` ranks; none for one rank, which has no peers.
std::vector<FaultTest> FaultTests(
    std::shared_ptr<const ConformanceEngine> engine, int ranks);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_FAULTS_H_
