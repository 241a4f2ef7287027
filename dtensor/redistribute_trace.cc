// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_trace.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

std::string RedistributeTrace::Entry::ToString() const {
  return absl::StrCat(implicit ? "implicit  " : "explicit  ", layouts, "  ",
                      bytes, " bytes", op.empty() ? "" : "  ", op);
}

RedistributeTrace::RedistributeTrace()
    : context_(RankContext::Current()), next_(context_.sink()) {
  context_.set_sink(this);
}

RedistributeTrace::~RedistributeTrace() {
  CH_CHECK(context_.sink() == this)
      << "RedistributeTrace: ends before a sink that was set after it";
  context_.set_sink(next_);
}

void RedistributeTrace::Write(const LogEvent& event) {
  if (event.kind == EventKind::kRedistribute) {
    entries_.push_back({.implicit = std::strcmp(event.what, "implicit") == 0,
                        .layouts = *event.subject,
                        .op = event.where == nullptr ? "" : *event.where,
                        .bytes = event.bytes});
  }
  if (next_ != nullptr) next_->Write(event);
}

std::string RedistributeTrace::ToString() const {
  std::string text;
  for (const Entry& entry : entries_) {
    absl::StrAppend(&text, entry.ToString(), "\n");
  }
  return text;
}

}  // namespace crosshatch
