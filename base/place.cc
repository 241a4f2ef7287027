// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/place.h"

#include <string>

namespace crosshatch {

const Place* Place::Innermost(Kind kind) {
  const Place* place = innermost_;
  while (place != nullptr && place->kind_ != kind) place = place->around_;
  return place;
}

std::shared_ptr<const std::string> RunningModule() {
  for (const Place* place = Place::Innermost(); place != nullptr;
       place = place->around()) {
    if (std::shared_ptr<const std::string> module = place->module()) {
      return module;
    }
  }
  return nullptr;
}

std::string Place::Here() {
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (part.empty()) return;
    if (!text.empty()) text += ", ";
    text += part;
  };
  const auto add_innermost = [&add](Kind kind) {
    const Place* const place = Innermost(kind);
    if (place != nullptr) add(place->Describe());
  };
  add_innermost(Kind::kRank);
  if (const std::shared_ptr<const std::string> module = RunningModule()) {
    add("module " + *module);
  }
  add_innermost(Kind::kGradient);
  add_innermost(Kind::kOp);
  return text;
}

}  // namespace crosshatch
