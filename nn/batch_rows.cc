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

namespace crosshatch::nn {
namespace {

// Its address is the key of the rank's slot.
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

}  // namespace

BatchRowsScope::BatchRowsScope(BatchRows rows, RowWidths* widths)
    : rows_(std::move(rows)),
      widths_(widths),
      around_(std::exchange(InnermostScope(), this)) {
  CH_CHECK(rows_.first >= 0 && rows_.here >= 0 &&
           rows_.first + rows_.here <= rows_.total)
      << "BatchRows: " << rows_.here << " rows from " << rows_.first
      << " on of a batch of " << rows_.total;
}

BatchRowsScope::~BatchRowsScope() { InnermostScope() = around_; }

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

bool IsSpreadOver(const Tensor& tensor, const MeshLayout& mesh) {
  if (!tensor.defined() || !tensor.is_distributed()) return false;
  const MeshLayout& own = MeshOf(tensor).layout();
  return std::count_if(mesh.ranks().begin(), mesh.ranks().end(),
                       [&](int rank) { return own.Contains(rank); }) > 1;
}

}  // namespace crosshatch::nn
