// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/dropout.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/mesh_collectives.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

absl::Status CompareOnMesh(const DeviceMesh& mesh, const std::string& here) {
  CH_ASSIGN_OR_RETURN(const std::optional<RankDifference> differ,
                      FindRankDifference(mesh, here, "SetDropoutStep"));
  if (!differ.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "dropout draws differently on ranks ", differ->first_rank, " and ",
      differ->other_rank, ": SetDropoutStep received ", differ->first, " and ",
      differ->other, "; it takes the same seed and step on every rank"));
}

// Compares seed and step with all ranks that share a distributed parameter of
// `root`, since otherwise replicas drop different elements. All of these ranks
// call it. An error poisons the rank. Returns whether there was a rank to
// compare with.
bool CompareSteps(Module& root, uint64_t seed, uint64_t step) {
  RankContext& context = RankContext::Current();
  std::vector<DeviceMesh> meshes;
  for (const Parameter* parameter : root.Parameters()) {
    if (!parameter->data().is_distributed()) continue;
    const DeviceMesh& mesh = MeshOf(parameter->data());
    if (mesh.size() == 1 || !mesh.coordinate().has_value()) continue;
    if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
    meshes.push_back(mesh);
    const absl::Status status =
        CompareOnMesh(mesh, absl::StrCat("seed ", seed, ", step ", step));
    if (!status.ok()) context.Poison(status);
  }
  return !meshes.empty();
}

// An odd multiplier that distributes the bits of its factor.
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

// Returns whether a runtime splits the batch of `module` or of an ancestor.
bool IsTold(const Module& module) {
  const Module* at = &module;
  while (at != nullptr && !at->splits_batch()) at = at->parent();
  return at != nullptr;
}

// Returns whether a runtime splits the batch of any module of the tree.
bool AnyIsTold(Module& module) {
  const std::vector<NamedModule> modules = RootOf(module).NamedModules();
  return std::any_of(modules.begin(), modules.end(), [](const NamedModule& m) {
    return m.module->splits_batch();
  });
}

// Checks in the first forward that the ranks which share rows drop alike. Each
// program sets its own mode with Module::set_training.
void CompareModes(const Tensor& input, bool drops) {
  if (!input.is_distributed()) return;
  // A captured step has run before.
  if (RankContext::Current().capture() != nullptr) return;
  const DeviceMesh& mesh = MeshOf(input);
  CompareReplicasOfInput("whether dropout is on (Module::set_training)",
                         FromValues<int32_t>({1}, {drops ? 1 : 0}), mesh,
                         Layout::Replicated(mesh.layout(), 1), {1});
}

}  // namespace

Dropout::Dropout(double p, std::optional<int> batch_dim)
    : p_(p), batch_dim_(batch_dim) {
  CH_CHECK(p >= 0 && p <= 1) << "Dropout with p = " << p;
}

std::optional<uint64_t> Dropout::row_randomness() const {
  if (!is_set_to_train() || p_ == 0 || !batch_dim_.has_value())
    return std::nullopt;
  const Draw draw = step_.value_or(Draw{});
  return draw.key ^ draw.step * kOdd;
}

void Dropout::SetStep(uint64_t seed, uint64_t step) {
  step_ = Draw{RandomKeyOf(seed, FullName()), step, 0};
  *current_step_ = step;
  drawn_.clear();
}

Dropout::RowPlace Dropout::PlaceOfRows(const BatchRows& rows) {
  RowCount& count = *row_count();
  // Attention calls ForAttention and need not belong to a module of the tree.
  const bool runs_alone = count.outermost() == nullptr;
  if (runs_alone) count.ForwardBegins(*this);
  const Module* source = BatchRowsScope::CurrentSource();
  if (source == nullptr || source->row_count().get() != &count) {
    source = count.outermost();
  }
  const int64_t before = count.Before(*source);
  count.Note(*source, rows.total);
  count.NoteDraw();
  if (runs_alone) count.ForwardEnds();
  const auto call = std::find_if(drawn_.begin(), drawn_.end(),
                                 [&](int64_t end) { return end <= before; });
  const auto index = static_cast<size_t>(call - drawn_.begin());
  if (call == drawn_.end()) drawn_.push_back(0);
  drawn_[index] = before + rows.total;
  return {.call = index, .first_row = before + rows.first};
}

Dropout::Draw Dropout::NextDraw(const Tensor& input) {
  CH_CHECK(step_.has_value())
      << "Dropout \"" << FullName() << "\" does not know which step it is; "
      << "call SetDropoutStep (nn/layers/dropout.h) on the model before its "
         "forward"
      << (parent() != nullptr
              ? ""
              : ", and if this module is part of another one, register it "
                "there (Make, RegisterModule): no module contains it, so calls "
                "on a model do not reach it");
  Draw draw = *step_;
  if (!batch_dim_.has_value() || input.ndim() == 0) return draw;
  const int64_t size =
      input.size(NormalizeDim(*batch_dim_, input.ndim(), "Dropout"));
  BatchRows rows;
  if (const BatchRows* const known = BatchRowsScope::Current()) {
    rows = *known;
    if (rows.over.has_value() && IsDistributedOver(input, *rows.over)) {
      rows.first = 0;
      rows.here = rows.total;
    }
  } else {
    CH_CHECK(!lacks_rows_ || input.is_distributed())
        << "Dropout \"" << FullName() << "\" does not know which rows of the "
        << "batch it has: it runs outside of the sharded modules of its model; "
        << "call FullyShard on the whole model too, or provide the rows with a "
        << "BatchRowsScope (nn/batch_rows.h)";
    const TensorSpan outermost = Module::OutermostInputs();
    const bool runs_alone = outermost.size() == 1 && outermost[0].SameAs(input);
    rows.here = runs_alone ? size : RowsOf(outermost).value_or(1);
    rows.total = rows.here;
  }
  // The elements of one row of the batch along the input's dim.
  int64_t width = size;
  if (rows.here > 0) {
    CH_CHECK(size % rows.here == 0 || rows.here == rows.total)
        << "Dropout \"" << FullName() << "\" of " << input.Describe()
        << ": dim " << *batch_dim_ << " is no multiple of the " << rows.here
        << " rows of the batch here; name the dim of the batch, or nullopt "
        << "for none (Dropout's batch_dim). The rows are those of the first "
        << "input of the outermost forward: if that is no batch, provide them "
        << "with a BatchRowsScope (nn/batch_rows.h)";
    width = (size + rows.here - 1) / rows.here;
    BatchRowsScope::NoteWidth(*label(), width);
  }
  const RowPlace place = PlaceOfRows(rows);
  draw.key ^= place.call * kOdd;
  draw.first_row = place.first_row * width;
  return draw;
}

TensorList Dropout::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "dropout";
  if (p_ == 0) return {inputs[0]};
  if (!InRecomputation()) CompareModes(inputs[0], is_set_to_train());
  if (!training()) return {inputs[0]};
  const Draw draw = Captured(InRecomputation() ? Draw{} : NextDraw(inputs[0]));
  const int dim = inputs[0].ndim() == 0 ? 0 : batch_dim_.value_or(0);
  const DropoutOp op(
      p_, draw.key, draw.step, draw.first_row,
      RankContext::Current().capture() == nullptr ? nullptr : current_step_);
  if (dim == 0) return {Apply1(op, inputs)};
  // Dropout counts rows along dim 0.
  const Tensor moved = MoveDim(inputs[0], dim, 0);
  const Tensor dropped = Apply1(op, {&moved, 1});
  return {MoveDim(dropped, 0, dim)};
}

AttentionDropout Dropout::ForAttention(const Tensor& q) {
  CH_CHECK(batch_dim_ == 0) << "Dropout \"" << FullName()
                            << "\": the batch of attention must be dim 0";
  if (p_ == 0) return {};
  if (!InRecomputation()) CompareModes(q, is_set_to_train());
  if (!training()) return {};
  const Draw draw = Captured(InRecomputation() ? Draw{} : NextDraw(q));
  return {
      .p = p_, .key = draw.key, .step = draw.step, .first_row = draw.first_row};
}

void SetDropoutTraining(Module& root, bool training) {
  for (const NamedModule& named : root.NamedModules()) {
    auto* dropout = dynamic_cast<Dropout*>(named.module);
    if (dropout != nullptr) dropout->set_training(training);
  }
}

void SetDropoutStep(Module& root, uint64_t seed, uint64_t step) {
  const bool any_is_told = AnyIsTold(root);
  std::vector<Dropout*> dropouts;
  const std::vector<NamedModule> modules = root.NamedModules();
  for (const NamedModule& named : modules) {
    auto* dropout = dynamic_cast<Dropout*>(named.module);
    if (dropout == nullptr) continue;
    dropouts.push_back(dropout);
    dropout->SetStep(seed, step);
    dropout->lacks_rows_ = any_is_told && !IsTold(*dropout);
  }
  if (dropouts.empty()) return;
  const auto count = std::make_shared<RowCount>();
  for (const NamedModule& named : modules) {
    named.module->set_row_count(count);
  }
  const bool all_compared =
      std::all_of(dropouts.begin(), dropouts.end(),
                  [](const Dropout* d) { return d->was_compared_; });
  if (all_compared || !CompareSteps(root, seed, step)) return;
  for (Dropout* dropout : dropouts) dropout->was_compared_ = true;
}

}  // namespace crosshatch::nn
