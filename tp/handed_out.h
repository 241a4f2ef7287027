// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_HANDED_OUT_H_
#define CROSSHATCH_TP_HANDED_OUT_H_

/// \file
/// How plain tensors lie that styles hand out (use_local_output): a plain
/// tensor does not say it itself, and a style that took it as lying otherwise
/// would compute other values without a word.

#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::tp {

/// Remembers on this rank, for as long as the memory of `tensor` lives and
/// nobody writes to it, that `style` of `giver` handed it out as the part on
/// this rank of one that lies on `mesh` as `placement`. Nothing is remembered
/// of a DTensor or an undefined tensor, nor on a mesh of one rank, where a part
/// is the whole however it lies. What was handed out already as lying otherwise
/// lies both ways (NoteLiesBothWays).
void NoteHandedOut(const Tensor& tensor, const DeviceMesh& mesh,
                   const Placement& placement, const nn::Module& giver,
                   const char* style);

/// Remembers as long that on this rank `tensor` is the part of one that lies in
/// one way and of one that lies in another, as all of a dim of one position is
/// on the first rank that splits it: it may be taken as either.
void NoteLiesBothWays(const Tensor& tensor, const DeviceMesh& mesh);

/// Fails a check, which names both modules, where `style` of `taker` takes
/// `tensor` to lie as `placement` and it was handed out as lying otherwise.
/// Nothing is known, and so nothing wrong, of DTensors, of what no style has
/// handed out on `mesh`, and of what an op has made of it.
void CheckTaken(const Tensor& tensor, const DeviceMesh& mesh,
                const Placement& placement, const nn::Module& taker,
                const char* style);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_HANDED_OUT_H_
