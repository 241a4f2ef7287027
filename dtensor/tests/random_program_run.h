// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_RUN_H_
#define CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_RUN_H_

/// \file
/// Runs random programs on plain tensors, and on distributed ones, whose
/// results it compares with those of the plain ones.

#include <string>
#include <vector>

#include "crosshatch/dtensor/tests/random_program.h"

namespace crosshatch {

/// The results of a program, as numbers.
struct ProgramOutcome {
  struct Value {
    bool defined = false;
    bool requires_grad = false;
    Shape sizes;
    std::vector<double> elements;
  };
  /// At the end, including in-place writes.
  std::vector<Value> registers;
  /// Gradients of a weighted sum of all registers, by differentiable input;
  /// then those of a weighted sum of these.
  std::vector<Value> gradients;
  std::vector<Value> second_gradients;
  /// The largest magnitude of all of these.
  double largest = 0;
};

/// Runs on the calling thread. A failed check ends the process.
ProgramOutcome RunPlain(const RandomProgram& program);

/// Returns whether every result is exact in any order of summation, or rounding
/// is far below the difference of two whole numbers.
bool IsSmall(const RandomProgram& program, const ProgramOutcome& outcome);

/// Runs on rank threads. Also checks that replicas hold the same bits, and that
/// gradients have the layouts of their leaves.
/// \returns a description of the difference from `expected`; empty if there is
///     none.
std::string RunDistributed(const RandomProgram& program,
                           const ProgramOutcome& expected);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_RUN_H_
