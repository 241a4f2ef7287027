// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_trace.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

namespace {

CommOrigin::Kind CauseOf(const char* name) {
  for (const auto kind : {CommOrigin::Kind::kImplicit, CommOrigin::Kind::kOp}) {
    if (std::strcmp(name, Name(kind)) == 0) return kind;
  }
  return CommOrigin::Kind::kExplicit;
}

}  // namespace

std::string RedistributeTrace::Entry::ToString() const {
  std::string text = Name(cause);
  text.resize(10, ' ');
  absl::StrAppend(&text, layouts, "  ", bytes, " bytes", op.empty() ? "" : "  ",
                  op);
  return text;
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
    entries_.push_back({.cause = CauseOf(event.what),
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
