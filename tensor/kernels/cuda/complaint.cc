// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/complaint.h"

#include "absl/strings/str_cat.h"

namespace crosshatch::internal {

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
                          second, " among ", third, " classes");
  }
  return "";
}

}  // namespace crosshatch::internal
