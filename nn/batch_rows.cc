// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/batch_rows.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

// The address of this variable is the key of the rank's slot.
constexpr char kKey = 0;

struct Innermost final : RankContext::Extension {
  const BatchRowsScope* scope = nullptr;
};

const BatchRowsScope*& InnermostScope() {
  std::unique_ptr<RankContext::Extension>& slot =
      RankContext::Current().extension(&kKey);
  if (slot == nullptr) slot = std::make_unique<Innermost>();
  return static_cast<Innermost&>(*slot).scope;
}

// Returns whether the forward of `module` or of a descendant draws by row.
bool DrawsByRow(const Module& module) {
  return module.row_randomness().has_value() ||
         std::any_of(
             module.children().begin(), module.children().end(),
             [](const auto& child) { return DrawsByRow(*child.second); });
}

}  // namespace

RowCount::Rows& RowCount::Of(const Module* source) {
  for (Rows& rows : rows_) {
    if (rows.source == source) return rows;
  }
  return rows_.emplace_back(Rows{source});
}

int64_t RowCount::Before(const Module& source) const {
  for (const Rows& rows : rows_) {
    if (rows.source == &source) return rows.before;
  }
  return 0;
}

void RowCount::Note(const Module& source, int64_t total) {
  Rows& rows = Of(&source);
  rows.running = std::max(rows.running, total);
}

void RowCount::ForwardBegins(const Module& module) {
  if (depth_++ == 0) outermost_ = &module;
}

void RowCount::ForwardEnds() {
  if (--depth_ > 0) return;
  const bool counts = draws_ || DrawsByRow(*outermost_);
  // Perhaps no module of this rank has drawn.
  if (counts && Of(outermost_).running < 0) {
    const BatchRows* const known = BatchRowsScope::Current();
    Note(*outermost_, known != nullptr
                          ? known->total
                          : RowsOf(Module::OutermostInputs()).value_or(1));
  }
  for (Rows& rows : rows_) {
    if (counts && rows.running > 0) rows.before += rows.running;
    rows.running = -1;
  }
  outermost_ = nullptr;
  draws_ = false;
}

BatchRowsScope::BatchRowsScope(BatchRows rows, RowWidths* widths,
                               const Module* source)
    : rows_(std::move(rows)),
      widths_(widths),
      source_(source != nullptr ? source : Module::Innermost()),
      around_(std::exchange(InnermostScope(), this)) {
  CH_CHECK(rows_.first >= 0 && rows_.here >= 0 &&
           rows_.first + rows_.here <= rows_.total)
      << "BatchRows: " << rows_.here << " rows from " << rows_.first
      << " on of a batch of " << rows_.total;
  if (source_ == nullptr || InRecomputation()) return;
  row_count_ = source_->row_count();
  if (row_count_ == nullptr) return;
  row_count_->ForwardBegins(*source_);
  row_count_->Note(*source_, rows_.total);
}

BatchRowsScope::~BatchRowsScope() {
  if (row_count_ != nullptr) row_count_->ForwardEnds();
  InnermostScope() = around_;
}

const Module* BatchRowsScope::CurrentSource() {
  const BatchRowsScope* const scope = InnermostScope();
  return scope == nullptr ? nullptr : scope->source_;
}

const BatchRows* BatchRowsScope::Current() {
  const BatchRowsScope* const scope = InnermostScope();
  return scope == nullptr ? nullptr : &scope->rows_;
}

void BatchRowsScope::NoteWidth(const std::string& module, int64_t width) {
  const BatchRowsScope* const scope = InnermostScope();
  if (scope == nullptr || scope->widths_ == nullptr) return;
  std::string call = module;
  for (int i = 2; scope->widths_->contains(call); ++i) {
    call = absl::StrCat(module, ", call ", i);
  }
  scope->widths_->emplace(std::move(call), width);
}

std::optional<int64_t> RowsOf(const Tensor& input) {
  if (!input.defined() || input.ndim() == 0) return std::nullopt;
  return input.size(0);
}

std::optional<int64_t> RowsOf(TensorSpan inputs) {
  for (const Tensor& input : inputs) {
    if (const std::optional<int64_t> rows = RowsOf(input)) return rows;
  }
  return std::nullopt;
}

bool IsDistributedOver(const Tensor& tensor, const MeshLayout& mesh) {
  if (!tensor.defined() || !tensor.is_distributed()) return false;
  const MeshLayout& own = MeshOf(tensor).layout();
  return std::count_if(mesh.ranks().begin(), mesh.ranks().end(),
                       [&](int rank) { return own.Contains(rank); }) > 1;
}

}  // namespace crosshatch::nn
