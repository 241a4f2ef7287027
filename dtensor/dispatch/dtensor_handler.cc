// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

std::string DTensorHandler::Describe() const {
  return absl::StrCat(local_.Describe(), " here|", layout().ToString(), " on ",
                      mesh_.ToString());
}

bool DTensorHandler::AddsInPlace(const Tensor& other) const {
  const Layout& mine = layout();
  if (Of(other).layout() != mine || Of(other).mesh() != mesh_) return false;
  for (int axis = 0; axis < mine.mesh().ndim(); ++axis) {
    // Other reductions do not commute with the sum.
    const AxisState& state = mine.state_of_axis(axis);
    if (state.is_partial() && state.op != ReduceOp::kSum &&
        state.op != ReduceOp::kAvg) {
      return false;
    }
  }
  return true;
}

std::string DTensorHandler::MemoryOwner() const {
  return MemoryOwnerOf(local_);
}

bool DTensorHandler::OwnsMemory() const {
  // If it were a view of a larger storage, it would keep the rest alive.
  const bool has_alias_or_copy = mark_ != nullptr && mark_.use_count() > 1;
  return !is_alias_or_copy() && !has_alias_or_copy && local_.IsUnique() &&
         local_.is_contiguous() &&
         local_.storage()->bytes() == local_.numel() * SizeOf(local_.dtype());
}

DTensorHandler::DTensorHandler(Tensor local, const InternedLayout& layout,
                               DeviceMesh mesh, PartInfo info)
    : local_(std::move(local)),
      layout_(layout),
      mesh_(std::move(mesh)),
      aliasing_(info.aliasing),
      regular_(info.regular),
      watched_(info.aliasing != Aliasing::kAliasOrCopy &&
                       info.written.state() == nullptr
                   ? nullptr
                   : std::make_unique<Watched>(
                         Watched{.written = std::move(info.written),
                                 .ordered = {},
                                 .source = std::move(info.source),
                                 .source_version = info.source_version,
                                 .mark = std::move(info.mark)})) {}

PartInfo DTensorHandler::AliasOrCopyInfo() const {
  PartInfo info = {.aliasing = Aliasing::kAliasOrCopy, .regular = false};
  if (is_alias_or_copy()) {
    info.source = watched_->source;
    info.source_version = watched_->source_version;
    info.mark = watched_->mark;
  } else {
    if (mark_ == nullptr) mark_ = std::make_shared<const char>();
    info.source = local_.storage();
    info.source_version = memory().version();
    info.mark = mark_;
  }
  return info;
}

const Tensor& DTensorHandler::WritableLocal(const char* what) const {
  CH_CHECK(!is_alias_or_copy())
      << what << ": " << Describe() << " cannot be written: it is a copied "
      << "view, whose base would not see the write, or was redistributed "
      << "without communication and may be part of a tensor that other ranks "
      << "have copies of; Clone it";
  return local();
}

void DTensorHandler::Watch() const {
  Watched& watched = *watched_;
  if (is_alias_or_copy()) {
    // A source that is gone cannot be written.
    const std::shared_ptr<Storage> source = watched.source.lock();
    CH_CHECK(source == nullptr || source->version() == watched.source_version)
        << Describe() << " is used after an in-place write to its base tensor, "
        << "which changed only some ranks' parts of it: it is a copied view, "
        << "or was redistributed without communication; make it again, or "
        << "Clone it before the write";
  }
  if (watched.written.state() == nullptr) return;
  Stream& stream = RankContext::Current().current_stream();
  for (const Stream* ordered : watched.ordered) {
    if (ordered == &stream) return;
  }
  stream.Wait(watched.written);
  watched.ordered.push_back(&stream);
}

}  // namespace crosshatch
