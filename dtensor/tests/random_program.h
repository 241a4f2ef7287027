// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_H_
#define CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_H_

/// \file
/// Random programs of ops, as values: they print, and run on plain or
/// distributed tensors.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct OpKind;

/// An input of a program: small whole numbers from `seed`.
struct ProgramInput {
  Shape sizes;
  DType dtype = kFloat64;
  /// Whether it is a leaf that requires a gradient.
  bool differentiable = false;
  int seed = 0;
  /// If not 0, the input has indices below it instead of numbers.
  int64_t indices_below = 0;
  /// Its layout on the program's mesh.
  Layout layout;
  /// The layout of the gradient that the end of the program passes to it;
  /// nullopt: that of the ops.
  std::optional<Layout> gradient = std::nullopt;
};

/// One call. Registers are the program's inputs, followed by the results of its
/// calls.
struct Instruction {
  const OpKind* kind;
  std::vector<int> operands;
  /// Attributes, as interpreted by the kind.
  std::vector<int64_t> numbers;
  /// For the kinds that change the layout.
  std::optional<Layout> layout;
  /// Runs in NoGrad, as required for writes to views and leaves.
  bool no_grad = false;
  /// For the result, as ProgramInput::gradient.
  std::optional<Layout> gradient = std::nullopt;
};

struct RandomProgram {
  MeshLayout mesh;
  std::vector<ProgramInput> inputs;
  std::vector<Instruction> instructions;
  /// Whether gradients of gradients are compared, too.
  bool twice = false;
  /// Whether kFloat64 stands for kFloat32; for exact calls only.
  bool in_f32 = false;

  /// Returns the layout of the gradient that the end sends to register `r`.
  const std::optional<Layout>& GradientOf(size_t r) const {
    return r < inputs.size() ? inputs[r].gradient
                             : instructions[r - inputs.size()].gradient;
  }
  /// Returns one line for each register.
  std::string ToString() const;
};

/// The state for choosing the next call; entries by register.
struct Registers {
  const MeshLayout& mesh;
  /// Tensors of a dry run, for sizes, strides and shared memory.
  std::vector<Tensor> tensors;
  std::vector<bool> differentiable_leaf;
  /// ProgramInput::indices_below.
  std::vector<int64_t> indices_below;
  /// Memory that some register may or may not share; it is never written.
  std::vector<const Storage*> loose;

  bool IsLoose(int r) const;
};

/// An op, and how programs call it.
struct OpKind {
  const char* name;
  /// Sets operands and attributes; returns false if no registers fit.
  bool (*choose)(const Registers& registers, std::mt19937& random,
                 Instruction& call);
  /// Runs the call on plain or distributed tensors.
  Tensor (*run)(TensorSpan operands, const Instruction& call);
  /// Whether it writes its operand 0, and returns it.
  bool in_place = false;
  /// Whether the result may or may not share memory with the operand.
  bool loose = false;
  /// Whether whole numbers give whole numbers, also in gradients.
  bool exact = true;
};

/// Returns all kinds.
const std::vector<OpKind>& OpKinds();

/// Returns a uniform whole number from 0 to `n` - 1.
int64_t Below(int64_t n, std::mt19937& random);
/// Returns a program that is random except for its mesh.
RandomProgram MakeRandomProgram(const MeshLayout& mesh, std::mt19937& random);

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

#endif  // CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_H_
