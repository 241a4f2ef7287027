// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/error_context.h"

#include <string>

namespace crosshatch {

const ErrorContext* ErrorContext::Innermost(Kind kind) {
  const ErrorContext* context = innermost_;
  while (context != nullptr && context->kind_ != kind)
    context = context->around_;
  return context;
}

std::shared_ptr<const std::string> RunningModule() {
  for (const ErrorContext* context = ErrorContext::Innermost();
       context != nullptr; context = context->around()) {
    if (std::shared_ptr<const std::string> module = context->module()) {
      return module;
    }
  }
  return nullptr;
}

namespace {

void Add(std::string& text, const std::string& part) {
  if (part.empty()) return;
  if (!text.empty()) text += ", ";
  text += part;
}

void AddInnermost(std::string& text, ErrorContext::Kind kind) {
  const ErrorContext* const context = ErrorContext::Innermost(kind);
  if (context != nullptr) Add(text, context->Describe());
}

}  // namespace

std::string ErrorContext::DescribeCurrent() {
  std::string text;
  AddInnermost(text, Kind::kRank);
  if (const std::shared_ptr<const std::string> module = RunningModule()) {
    Add(text, "module " + *module);
  }
  AddInnermost(text, Kind::kGradient);
  AddInnermost(text, Kind::kOp);
  return text;
}

IssuedErrorContext IssuedErrorContext::Capture(bool in_words) {
  IssuedErrorContext here;
  here.module_ = RunningModule();
  if (in_words) {
    AddInnermost(here.words_, ErrorContext::Kind::kGradient);
    AddInnermost(here.words_, ErrorContext::Kind::kOp);
    return here;
  }
  if (const ErrorContext* context =
          ErrorContext::Innermost(ErrorContext::Kind::kGradient)) {
    here.gradient_ = context->op_name();
  }
  if (const ErrorContext* context =
          ErrorContext::Innermost(ErrorContext::Kind::kOp)) {
    here.op_ = context->op_name();
  }
  return here;
}

std::string IssuedErrorContext::Describe() const {
  std::string text = words_;
  if (gradient_ != nullptr) Add(text, std::string("gradient of ") + gradient_);
  if (op_ != nullptr) Add(text, std::string("op ") + op_);
  return text;
}

}  // namespace crosshatch
