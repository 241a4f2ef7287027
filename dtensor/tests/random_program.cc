// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/tests/random_program.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

constexpr int64_t kMostElements = 300;

// Returns a layout that backward may produce: sums and averages may be pending.
std::optional<Layout> RandomGradient(const MeshLayout& mesh, int ndim,
                                     std::mt19937& random) {
  if (Below(3, random) == 0) return std::nullopt;
  Layout layout = RandomLayout(mesh, ndim, random);
  const bool linear = std::all_of(
      layout.partials().begin(), layout.partials().end(), [](const auto& op) {
        return !op.has_value() || op == ReduceOp::kSum || op == ReduceOp::kAvg;
      });
  return linear ? layout : layout.WithoutPartials();
}

// Computes the registers after inputs and calls by a dry run.
class Trial {
 public:
  explicit Trial(const MeshLayout& mesh)
      : context_({.dry_run = true}),
        scope_(&context_),
        registers_{mesh, {}, {}, {}, {}} {}
  ~Trial() { registers_.tensors.clear(); }

  void Add(const ProgramInput& input) {
    registers_.tensors.push_back(Empty(input.sizes, input.dtype));
    registers_.differentiable_leaf.push_back(input.differentiable);
    registers_.indices_below.push_back(input.indices_below);
  }

  // Returns false if the result would be too large.
  bool Add(const Instruction& call) {
    TensorList operands;
    for (int r : call.operands) operands.push_back(registers_.tensors[r]);
    Tensor result = call.kind->run(operands, call);
    if (result.numel() > kMostElements) return false;
    const int first = call.operands[0];
    if (call.kind->loose) {
      registers_.loose.push_back(operands[0].storage().get());
      registers_.loose.push_back(result.storage().get());
    }
    registers_.tensors.push_back(std::move(result));
    registers_.differentiable_leaf.push_back(
        registers_.differentiable_leaf[first] &&
        registers_.tensors.back().storage() == operands[0].storage());
    registers_.indices_below.push_back(0);
    return true;
  }

  const Registers& registers() const { return registers_; }

 private:
  RankContext context_;
  RankContextScope scope_;
  NoGrad no_grad_;
  Registers registers_;
};

}  // namespace

bool Registers::IsLoose(int r) const {
  return std::count(loose.begin(), loose.end(), tensors[r].storage().get()) !=
         0;
}

int64_t Below(int64_t n, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
}

RandomProgram MakeRandomProgram(const MeshLayout& mesh, std::mt19937& random) {
  RandomProgram program = {.mesh = mesh};
  program.twice = Below(2, random) == 0;
  // Few sizes, so that registers fit each other.
  const std::vector<int64_t> all = {0, 1, 1, 2, 3, 4, 5};
  std::vector<int64_t> palette;
  for (int i = 0; i < 3; ++i) {
    palette.push_back(all[Below(static_cast<int64_t>(all.size()), random)]);
  }
  const auto sizes = [&](int ndim) {
    Shape made;
    for (int d = 0; d < ndim; ++d) made.push_back(palette[Below(3, random)]);
    return made;
  };
  Trial trial(mesh);
  const auto add = [&](ProgramInput input) {
    input.seed = static_cast<int>(program.inputs.size()) + 1;
    input.gradient =
        RandomGradient(mesh, static_cast<int>(input.sizes.size()), random);
    trial.Add(input);
    program.inputs.push_back(std::move(input));
  };
  const int64_t floats = 1 + Below(3, random);
  for (int64_t i = 0; i < floats; ++i) {
    const int ndim = static_cast<int>(Below(4, random));
    add({.sizes = sizes(ndim),
         .differentiable = i == 0 || Below(3, random) != 0,
         .layout = RandomLayout(mesh, ndim, random)});
  }
  if (Below(3, random) == 0) {
    const int ndim = static_cast<int>(Below(4, random));
    add({.sizes = sizes(ndim),
         .dtype = Below(2, random) == 0 ? kInt32 : kInt64,
         .layout = RandomLayout(mesh, ndim, random).WithoutPartials()});
  }
  if (Below(3, random) == 0) {
    // Indices for the first input: of its sizes except for one dim.
    Shape like = program.inputs[0].sizes;
    const int64_t below = 1 + Below(3, random);
    if (Below(2, random) == 0) like = sizes(1);
    if (!like.empty()) {
      like[Below(static_cast<int64_t>(like.size()), random)] =
          palette[Below(3, random)];
    }
    const int ndim = static_cast<int>(like.size());
    add({.sizes = like,
         .dtype = kInt64,
         .indices_below = below,
         .layout = RandomLayout(mesh, ndim, random).WithoutPartials()});
  }
  const auto& kinds = OpKinds();
  const int64_t calls = 1 + Below(10, random);
  for (int64_t tries = 0;
       tries < 40 && static_cast<int64_t>(program.instructions.size()) < calls;
       ++tries) {
    const OpKind& kind =
        kinds[Below(static_cast<int64_t>(kinds.size()), random)];
    Instruction call = {.kind = &kind};
    if (!kind.choose(trial.registers(), random, call)) continue;
    if (!trial.Add(call)) continue;
    const Tensor& result = trial.registers().tensors.back();
    call.gradient = RandomGradient(mesh, result.ndim(), random);
    program.instructions.push_back(std::move(call));
  }
  program.in_f32 =
      Below(3, random) == 0 &&
      std::all_of(program.instructions.begin(), program.instructions.end(),
                  [](const Instruction& call) { return call.kind->exact; });
  return program;
}

std::string RandomProgram::ToString() const {
  std::string text =
      absl::StrCat(mesh.ToString(), twice ? ", second gradients too" : "",
                   in_f32 ? ", f32 in the place of f64\n" : "\n");
  int r = 0;
  const auto end_line = [&text](const std::optional<Layout>& gradient) {
    if (gradient.has_value()) {
      absl::StrAppend(&text, ", gradient in ", gradient->ToString());
    }
    absl::StrAppend(&text, "\n");
  };
  for (const ProgramInput& input : inputs) {
    absl::StrAppend(&text, "  r", r++, " = input ", Name(input.dtype),
                    crosshatch::ToString(input.sizes), " ",
                    input.layout.ToString(),
                    input.differentiable ? " differentiable" : "");
    if (input.indices_below != 0) {
      absl::StrAppend(&text, " indices below ", input.indices_below);
    }
    end_line(input.gradient);
  }
  for (const Instruction& call : instructions) {
    absl::StrAppend(&text, "  r", r++, " = ", call.kind->name, "(");
    absl::StrAppend(&text, absl::StrJoin(call.operands, ", ",
                                         [](std::string* out, int operand) {
                                           absl::StrAppend(out, "r", operand);
                                         }));
    if (!call.numbers.empty()) {
      absl::StrAppend(&text, "; ", absl::StrJoin(call.numbers, ", "));
    }
    if (call.layout.has_value()) {
      absl::StrAppend(&text, "; ", call.layout->ToString());
    }
    absl::StrAppend(&text, call.no_grad ? ") in NoGrad" : ")");
    end_line(call.gradient);
  }
  return text;
}

}  // namespace crosshatch
