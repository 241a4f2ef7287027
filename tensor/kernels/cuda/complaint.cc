// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/complaint.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"

namespace crosshatch::internal {
namespace {

// The host checks at least once in each training step.
constexpr size_t kKnownPlaces = 256;

}  // namespace

ComplainerPlaces::ComplainerPlaces() : places_(kKnownPlaces) {}
ComplainerPlaces::~ComplainerPlaces() = default;

int64_t ComplainerPlaces::NoteHere() {
  places_[static_cast<size_t>(next_) % kKnownPlaces] =
      IssuedErrorContext::Capture(/*in_words=*/true);
  return next_++;
}

void ComplainerPlaces::End(const Complaint& complaint) const {
  // Not the host's current context.
  const AdoptedErrorContext rank(
      ErrorContext::Innermost(ErrorContext::Kind::kRank));
  std::optional<IssuedErrorContextScope> issued;
  if (next_ - complaint.issue <= static_cast<int64_t>(kKnownPlaces)) {
    issued.emplace(
        places_[static_cast<size_t>(complaint.issue) % kKnownPlaces]);
  }
  CH_CHECK(complaint.kind == ComplaintKind::kNone) << TextOf(complaint);
}

std::string TextOf(const Complaint& complaint) {
  const auto& [first, second, third] = complaint.values;
  switch (complaint.kind) {
    case ComplaintKind::kNone:
      return "";
    case ComplaintKind::kIndexOfDim:
      return absl::StrCat(complaint.op, ": index ", first,
                          " is out of range: dim ", second, " has ", third,
                          " elements");
    case ComplaintKind::kIndexInList:
      return absl::StrCat(complaint.op, ": ", complaint.name, " ", first,
                          " at ", second, " is out of range: there are ", third,
                          " ", complaint.plural);
    case ComplaintKind::kTarget:
      return absl::StrCat("cross_entropy kernel: target ", first, " of row ",
                          second, " among ", third,
                          " classes, and no ignore_index, which rows without a "
                          "target have");
  }
  return "";
}

}  // namespace crosshatch::internal
