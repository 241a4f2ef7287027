// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_RUN_H_
#define CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_RUN_H_

/// \file
/// Runs random programs on plain tensors, and on distributed ones beside what
/// came of the plain ones.

#include <string>
#include <vector>

#include "crosshatch/dtensor/tests/random_program.h"

namespace crosshatch {

/// What a program leaves behind, as numbers.
struct ProgramOutcome {
  struct Value {
    bool defined = false;
    bool requires_grad = false;
    Shape sizes;
    std::vector<double> elements;
  };
  /// At the end: what was written in place shows.
  std::vector<Value> registers;
  /// Of a weighted sum of all registers, by differentiable input; then those of
  /// a weighted sum of these.
  std::vector<Value> gradients;
  std::vector<Value> second_gradients;
  /// Of all of these.
  double largest = 0;
};

/// On the calling thread. What plain tensors refuse ends the process.
ProgramOutcome RunPlain(const RandomProgram& program);

/// Whether every number that came of it is exact in any order of summation,
/// or rounding stays far below the difference of two whole numbers.
bool IsSmall(const RandomProgram& program, const ProgramOutcome& outcome);

/// On rank threads; also that replicas hold the same bits, and that gradients
/// lie as their leaves do.
/// \returns what is wrong beside `expected`; empty if nothing is.
std::string RunDistributed(const RandomProgram& program,
                           const ProgramOutcome& expected);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_RUN_H_
