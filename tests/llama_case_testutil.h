// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_LLAMA_CASE_TESTUTIL_H_
#define CROSSHATCH_TESTS_LLAMA_CASE_TESTUTIL_H_

#include <string>

#include "crosshatch/testing/ranks.h"

namespace crosshatch {

/// Trains a model of tests/conformance/llama ("gqa", "tied") on `mesh` (such as
/// "fsdp:2,tp:2") as train_lm does. Expects the losses, norms and final weights
/// of the reference within the bounds of tests/conformance.
void ExpectTrainsAsTheReferenceDoes(const std::string& model,
                                    const std::string& mesh,
                                    const JobOptions& run = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_LLAMA_CASE_TESTUTIL_H_
