// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/writers_testutil.h"

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/summon.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"

namespace crosshatch::fsdp {
namespace {

absl::Status AdamWStep(World& /*world*/, nn::Module& model) {
  nn::AdamW optimizer(model.Parameters(), {.lr = 0.5});
  return optimizer.Step();
}

absl::Status SummonAndWrite(World& /*world*/, nn::Module& model) {
  CH_ASSIGN_OR_RETURN(auto scope, SummonFullParameters::Begin(model));
  const NoGrad no_grad;
  for (const auto& entry : scope->entries()) MulInPlace(entry.full, 2);
  return scope->End();
}

absl::Status ReplaceData(World& /*world*/, nn::Module& model) {
  const NoGrad no_grad;
  for (nn::Parameter* p : model.Parameters()) {
    const Tensor old = p->data();
    p->set_data(MakeDTensor(Clone(LocalTensor(old)), MeshOf(old), LayoutOf(old),
                            old.sizes()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteLocalParts(nn::Module& model) {
  const NoGrad no_grad;
  for (nn::Parameter* p : model.Parameters()) {
    MulInPlace(LocalTensor(p->data()), 2);
  }
  return absl::OkStatus();
}

std::vector<Writer> Writers() {
  return {{"AdamW", AdamWStep},
          {"Summon", SummonAndWrite},
          {"LocalParts",
           [](World&, nn::Module& model) { return WriteLocalParts(model); }},
          {"SetData", ReplaceData}};
}

}  // namespace crosshatch::fsdp
