// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_CONTRACT_H_
#define CROSSHATCH_COMM_CONFORMANCE_CONTRACT_H_

/// \file
/// The tests of the conformance suite that concern one rank and hold on every
/// engine, including dry runs: refused, counted, logged and skipped
/// collectives, and one stream per communicator.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/conformance_engine.h"

namespace crosshatch::internal {

struct ContractTest {
  std::string name;
  std::function<void()> body;
};

std::vector<ContractTest> ContractTests(
    std::shared_ptr<const ConformanceEngine> engine, int ranks);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_CONTRACT_H_
