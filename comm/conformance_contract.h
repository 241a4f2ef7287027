// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_CONFORMANCE_CONTRACT_H_
#define CROSSHATCH_COMM_CONFORMANCE_CONTRACT_H_

/// \file
/// The part of the conformance suite about what one rank sees, which holds on
/// every engine, a dry run included: what is refused, counted, logged, when it
/// is not issued at all, and that one communicator is used on one stream.

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

/// The tests for `ranks` ranks.
std::vector<ContractTest> ContractTests(
    std::shared_ptr<const ConformanceEngine> engine, int ranks);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_CONFORMANCE_CONTRACT_H_
