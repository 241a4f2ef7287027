// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/tests/random_program.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

using Value = ProgramOutcome::Value;

struct Tensors {
  std::vector<Tensor> registers;
  std::vector<Tensor> leaves;
  TensorList gradients;
  TensorList second_gradients;
};

Tensor Make(const RandomProgram& program, const ProgramInput& input) {
  if (input.indices_below == 0) {
    const bool narrow = program.in_f32 && input.dtype == kFloat64;
    return Numbers(input.sizes, input.seed, narrow ? kFloat32 : input.dtype);
  }
  std::vector<int64_t> indices(NumElements(input.sizes));
  for (size_t i = 0; i < indices.size(); ++i) {
    indices[i] =
        static_cast<int64_t>((i * 7 + static_cast<size_t>(input.seed)) %
                             static_cast<size_t>(input.indices_below));
  }
  return FromValues<int64_t>(input.sizes, indices);
}

// Returns a weighted sum of the elements; undefined if no tensor requires a
// gradient.
//
// \param layout returns the layout of the gradient of tensor i, if one is set.
Tensor WeightedSum(absl::Span<const Tensor> tensors, int seed,
                   const std::function<std::optional<Layout>(size_t)>& layout) {
  Tensor sum;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor t = tensors[i];
    ++seed;
    if (!t.defined() || !t.requires_grad()) continue;
    const std::optional<Layout> gradient = layout(i);
    if (t.is_distributed() && gradient.has_value()) {
      t = WithGradientIn(t, *gradient);
    }
    const Tensor term =
        Sum(Mul(t, ReplicatedLike(Numbers(t.sizes(), seed, t.dtype()), t)));
    sum = sum.defined() ? Add(sum, term) : term;
  }
  return sum;
}

absl::Status Run(const RandomProgram& program,
                 const std::function<Tensor(const ProgramInput&)>& make,
                 Tensors& made) {
  std::vector<std::optional<Layout>> of_leaves;
  for (const ProgramInput& input : program.inputs) {
    made.registers.push_back(make(input));
    if (!input.differentiable) continue;
    made.registers.back().set_requires_grad(true);
    made.leaves.push_back(made.registers.back());
    of_leaves.push_back(input.gradient);
  }
  for (const Instruction& call : program.instructions) {
    TensorList operands;
    for (int r : call.operands) operands.push_back(made.registers[r]);
    if (call.no_grad) {
      NoGrad no_grad;
      made.registers.push_back(call.kind->run(operands, call));
    } else {
      made.registers.push_back(call.kind->run(operands, call));
    }
  }
  const Tensor root = WeightedSum(
      made.registers, 100, [&](size_t r) { return program.GradientOf(r); });
  if (!root.defined()) return absl::OkStatus();
  if (!program.twice) {
    CH_RETURN_IF_ERROR(Backward(root));
    for (const Tensor& leaf : made.leaves) {
      made.gradients.push_back(leaf.grad());
    }
    return absl::OkStatus();
  }
  CH_ASSIGN_OR_RETURN(made.gradients,
                      Gradients(root, made.leaves, {.create_graph = true}));
  const Tensor second =
      WeightedSum(made.gradients, 200, [&](size_t i) { return of_leaves[i]; });
  if (!second.defined()) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(made.second_gradients, Gradients(second, made.leaves));
  return absl::OkStatus();
}

Value ValueOf(const Tensor& t) {
  if (!t.defined()) return {};
  NoGrad no_grad;
  return {.defined = true,
          .requires_grad = t.requires_grad(),
          .sizes = t.sizes(),
          .elements = ToDType(FullTensor(t), kFloat64).ToVector<double>()};
}

std::vector<Value> ValuesOf(absl::Span<const Tensor> tensors) {
  std::vector<Value> values;
  for (const Tensor& t : tensors) values.push_back(ValueOf(t));
  return values;
}

bool IsExact(const RandomProgram& program) {
  return std::all_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& call) { return call.kind->exact; });
}

// Each number is the sum of at most this many products, which calls and their
// gradients add. Each addition rounds.
double Tolerance(const RandomProgram& program, double largest) {
  if (IsExact(program)) return 0;
  const double calls = 3.0 * static_cast<double>(program.instructions.size());
  return calls * 300 * std::ldexp(1.0, -52) * std::max(largest, 1.0);
}

std::string Compare(const Tensor& actual, const Value& expected,
                    double tolerance) {
  if (actual.defined() != expected.defined) {
    return actual.defined() ? "defined, not so of plain tensors"
                            : "undefined, not so of plain tensors";
  }
  if (!expected.defined) return "";
  if (!actual.is_distributed()) return "not distributed";
  if (actual.sizes() != expected.sizes) {
    return absl::StrCat("sizes ", ToString(actual.sizes()), ", should be ",
                        ToString(expected.sizes));
  }
  // Must come first: it checks for a write to the source of a possible copy,
  // whose history is then stale, too.
  const Value value = ValueOf(actual);
  if (value.requires_grad != expected.requires_grad) {
    return absl::StrCat("requires a gradient: ", value.requires_grad);
  }
  for (size_t i = 0; i < value.elements.size(); ++i) {
    const double a = value.elements[i];
    const double b = expected.elements[i];
    if (!(std::abs(a - b) <= tolerance)) {
      return absl::StrCat(actual.Describe(), ": element ", i, " is ", a,
                          ", should be ", b);
    }
  }
  const absl::Status same = VerifyReplicas(actual);
  return same.ok() ? "" : absl::StrCat(actual.Describe(), ": ", same.message());
}

// Compares everything on every rank, even after a difference, because comparing
// communicates.
std::string CompareAll(const char* what, absl::Span<const Tensor> actual,
                       const std::vector<Value>& expected, double tolerance) {
  if (actual.size() != expected.size()) {
    return absl::StrCat(actual.size(), " ", what, "s, should be ",
                        expected.size());
  }
  std::string first;
  for (size_t i = 0; i < actual.size(); ++i) {
    const std::string wrong = Compare(actual[i], expected[i], tolerance);
    if (first.empty() && !wrong.empty()) {
      first = absl::StrCat(what, " ", i, ": ", wrong);
    }
  }
  return first;
}

std::string CompareRank(const RandomProgram& program, const Tensors& made,
                        const ProgramOutcome& expected) {
  const double tolerance = Tolerance(program, expected.largest);
  std::string wrong;
  const auto keep_first = [&wrong](std::string text) {
    if (wrong.empty()) wrong = std::move(text);
  };
  keep_first(
      CompareAll("register", made.registers, expected.registers, tolerance));
  keep_first(
      CompareAll("gradient", made.gradients, expected.gradients, tolerance));
  keep_first(CompareAll("second gradient", made.second_gradients,
                        expected.second_gradients, tolerance));
  if (program.twice) return wrong;
  for (size_t i = 0; i < made.gradients.size(); ++i) {
    const Tensor& gradient = made.gradients[i];
    if (gradient.defined() && gradient.is_distributed() &&
        LayoutOf(gradient) != LayoutOf(made.leaves[i])) {
      keep_first(absl::StrCat(
          "gradient ", i,
          " has another layout than its leaf: ", gradient.Describe()));
    }
  }
  return wrong;
}

}  // namespace

ProgramOutcome RunPlain(const RandomProgram& program) {
  Tensors made;
  CH_CHECK_OK(Run(
      program, [&](const ProgramInput& input) { return Make(program, input); },
      made));
  ProgramOutcome outcome = {ValuesOf(made.registers), ValuesOf(made.gradients),
                            ValuesOf(made.second_gradients)};
  for (const auto* values :
       {&outcome.registers, &outcome.gradients, &outcome.second_gradients}) {
    for (const Value& value : *values) {
      for (double x : value.elements) {
        outcome.largest = std::max(outcome.largest, std::abs(x));
      }
    }
  }
  return outcome;
}

bool IsSmall(const RandomProgram& program, const ProgramOutcome& outcome) {
  if (!IsExact(program)) return outcome.largest < 0x1p24;
  // Partial sums and products are below 2^13 times as large.
  return outcome.largest < (program.in_f32 ? 0x1p11 : 0x1p40);
}

std::string RunDistributed(const RandomProgram& program,
                           const ProgramOutcome& expected) {
  std::vector<std::string> wrong(program.mesh.size());
  const absl::Status status = StatusOfRanks(
      program.mesh.size(),
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, program.mesh));
        Tensors made;
        CH_RETURN_IF_ERROR(Run(
            program,
            [&](const ProgramInput& input) {
              return Spread(Make(program, input), mesh, input.layout);
            },
            made));
        wrong[world.rank()] = CompareRank(program, made, expected);
        return world.context().Synchronize();
      },
      {.threads_per_rank = 1});
  for (size_t rank = 0; rank < wrong.size(); ++rank) {
    if (!wrong[rank].empty()) {
      return absl::StrCat("rank ", rank, ": ", wrong[rank]);
    }
  }
  return status.ok() ? "" : status.ToString();
}

}  // namespace crosshatch
