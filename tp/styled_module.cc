// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/styled_module.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch::tp {
namespace {

constexpr char kAttachment[] = "tp";

class Laid final : public nn::Attachment {
 public:
  explicit Laid(Style style) : style_(std::move(style)) {}
  const ParallelStyle& style() const { return *style_; }

 private:
  const Style style_;
};

}  // namespace

const ParallelStyle* LaidStyle(const nn::Module& module) {
  const auto* laid = static_cast<Laid*>(module.attachment(kAttachment));
  return laid == nullptr ? nullptr : &laid->style();
}

void SetLaidStyle(nn::Module& module, Style style) {
  module.Attach(kAttachment, std::make_shared<Laid>(std::move(style)));
}

const ParallelStyle* StyleOf(const StyledModule& module) {
  if (module.style != nullptr) return module.style.get();
  return LaidStyle(*module.named.module);
}

bool HasPlainParameters(const nn::Module& module) {
  const auto is_plain = [](const auto& entry) {
    return !entry.second->data().is_distributed();
  };
  return std::any_of(module.own_parameters().begin(),
                     module.own_parameters().end(), is_plain) ||
         std::any_of(module.own_buffers().begin(), module.own_buffers().end(),
                     is_plain);
}

std::string Quoted(const std::string& name) {
  return absl::StrCat("\"", name, "\"");
}

}  // namespace crosshatch::tp
