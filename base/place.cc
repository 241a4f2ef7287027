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

namespace {

void Add(std::string& text, const std::string& part) {
  if (part.empty()) return;
  if (!text.empty()) text += ", ";
  text += part;
}

void AddInnermost(std::string& text, Place::Kind kind) {
  const Place* const place = Place::Innermost(kind);
  if (place != nullptr) Add(text, place->Describe());
}

}  // namespace

std::string Place::Here() {
  std::string text;
  AddInnermost(text, Kind::kRank);
  if (const std::shared_ptr<const std::string> module = RunningModule()) {
    Add(text, "module " + *module);
  }
  AddInnermost(text, Kind::kGradient);
  AddInnermost(text, Kind::kOp);
  return text;
}

IssuedPlace IssuedPlace::Here(bool in_words) {
  IssuedPlace here;
  here.module_ = RunningModule();
  if (in_words) {
    AddInnermost(here.words_, Place::Kind::kGradient);
    AddInnermost(here.words_, Place::Kind::kOp);
    return here;
  }
  if (const Place* place = Place::Innermost(Place::Kind::kGradient)) {
    here.gradient_ = place->op_name();
  }
  if (const Place* place = Place::Innermost(Place::Kind::kOp)) {
    here.op_ = place->op_name();
  }
  return here;
}

std::string IssuedPlace::Describe() const {
  std::string text = words_;
  if (gradient_ != nullptr) Add(text, std::string("gradient of ") + gradient_);
  if (op_ != nullptr) Add(text, std::string("op ") + op_);
  return text;
}

}  // namespace crosshatch
