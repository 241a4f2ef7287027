// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_H_
#define CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_H_

/// \file
/// Random programs of ops, as values: they print, shrink, and run on plain
/// tensors or on distributed ones (random_program_run.h).

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

/// A tensor that a program starts from: small whole numbers by `seed`.
struct ProgramInput {
  Shape sizes;
  DType dtype = kFloat64;
  /// A leaf that requires a gradient.
  bool differentiable = false;
  int seed = 0;
  /// Not 0: indices below it, in place of numbers.
  int64_t indices_below = 0;
  /// How it lies on the program's mesh.
  Layout layout;
  /// The layout of the gradient that the end of the program sends back to it;
  /// nullopt: whatever the ops give.
  std::optional<Layout> gradient = std::nullopt;
};

/// One call. Registers are the program's inputs, then the results of its calls.
struct Instruction {
  const OpKind* kind;
  std::vector<int> operands;
  /// Attributes, as the kind reads them.
  std::vector<int64_t> numbers;
  /// Of the kinds that go to another layout.
  std::optional<Layout> layout;
  /// Runs in NoGrad, as writes to views and leaves must.
  bool no_grad = false;
  /// Of the result, as ProgramInput::gradient.
  std::optional<Layout> gradient = std::nullopt;
};

struct RandomProgram {
  MeshLayout mesh;
  std::vector<ProgramInput> inputs;
  std::vector<Instruction> instructions;
  /// Gradients of gradients are compared too.
  bool twice = false;
  /// Its kFloat64 stands for kFloat32; of exact calls alone.
  bool in_f32 = false;

  /// Returns the layout of the gradient that the end sends to register `r`.
  const std::optional<Layout>& GradientOf(size_t r) const {
    return r < inputs.size() ? inputs[r].gradient
                             : instructions[r - inputs.size()].gradient;
  }
  /// One line for each register.
  std::string ToString() const;
};

/// What choosing the next call may look at; entries by register.
struct Registers {
  const MeshLayout& mesh;
  /// In a dry run: sizes, strides and what shares memory.
  std::vector<Tensor> tensors;
  std::vector<bool> differentiable_leaf;
  /// ProgramInput::indices_below.
  std::vector<int64_t> indices_below;
  /// Memory that some register may share or not: nothing is written there.
  std::vector<const Storage*> loose;

  bool IsLoose(int r) const;
};

/// One of the ops, and how programs call it.
struct OpKind {
  const char* name;
  /// Sets operands and attributes; false where no registers fit.
  bool (*choose)(const Registers& registers, std::mt19937& random,
                 Instruction& call);
  /// On plain and on distributed tensors alike.
  Tensor (*run)(TensorSpan operands, const Instruction& call);
  /// Writes its operand 0, and returns it.
  bool in_place = false;
  /// The result may share memory with the operand, or not.
  bool loose = false;
  /// Whole numbers give whole numbers, and so do gradients.
  bool exact = true;
};

/// All of them.
const std::vector<OpKind>& OpKinds();

/// A whole number from 0 to `n` - 1, each as likely.
int64_t Below(int64_t n, std::mt19937& random);
/// All but the mesh at random.
RandomProgram MakeRandomProgram(const MeshLayout& mesh, std::mt19937& random);

/// Programs with a little less in them, the smallest first: shorter ones, ones
/// in which a call's result is an input of its sizes, ones with inputs that lie
/// whole on every rank.
std::vector<RandomProgram> Shrunk(const RandomProgram& program);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_RANDOM_PROGRAM_H_
