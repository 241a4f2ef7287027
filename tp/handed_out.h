// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_HANDED_OUT_H_
#define CROSSHATCH_TP_HANDED_OUT_H_

/// \file
/// How plain tensors lie that styles hand out (use_local_output): a plain
/// tensor does not say it itself, and a style that took it as lying otherwise
/// would compute other values without a word.

#include <optional>
#include <string>

#include "crosshatch/dtensor/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::tp {

/// Remembers on this rank, for as long as the memory of `tensor` lives and
/// nobody writes to it, that `giver` handed it out as the part on this rank of
/// one that lies on `mesh` as `placement`. Nothing is remembered of a DTensor
/// or an undefined tensor.
void NoteHandedOut(const Tensor& tensor, const DeviceMesh& mesh,
                   const Placement& placement, const std::string& giver);

/// What is wrong where `taker` takes `tensor` to lie as `placement`; nullopt
/// where nothing is, or nothing is known: of DTensors, of what no style has
/// handed out on `mesh`, and of what an op has made of it.
std::optional<std::string> TakenOtherwise(const Tensor& tensor,
                                          const DeviceMesh& mesh,
                                          const Placement& placement,
                                          const std::string& taker);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_HANDED_OUT_H_
