// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_TRAINING_TESTUTIL_H_
#define CROSSHATCH_FSDP_TRAINING_TESTUTIL_H_

/// \file
/// Training in small integers, to compare the results of a mesh and of one rank
/// bitwise (testutil.h).

#include <cmath>
#include <cstdint>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {

/// Sets w to w - gradient modulo 3, in -1, 0 and 1, on this rank's shard.
/// Integers stay small, and an error of 1 in a gradient changes the result.
/// Drops the gradients.
/// \param rounding bound of their relative error.
inline void IntegerDescent(nn::Module& model, float rounding = 0) {
  NoGrad no_grad;
  for (nn::Parameter* p : model.Parameters()) {
    if (!p->grad().defined()) continue;
    const Tensor data = LocalTensor(p->data());
    if (data.device().is_meta()) {  // A dry run has no values.
      AddInPlace(data, LocalTensor(p->grad()), -1);
      p->set_grad(Tensor());
      continue;
    }
    std::vector<float> values = data.ToVector<float>();
    const std::vector<float> grads = LocalTensor(p->grad()).ToVector<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      // Exact only below 2^24, up to which float32 represents every integer.
      CH_CHECK_LT(std::abs(grads[i]), 16777216.0f);
      const float gradient = std::round(grads[i]);
      CH_CHECK_LE(std::abs(grads[i] - gradient), rounding * std::abs(gradient))
          << p->name();
      const float sum = std::fmod(values[i] - gradient + 1, 3.0f);
      values[i] = (sum < 0 ? sum + 3 : sum) - 1;
    }
    CopyInPlace(data, FromValues<float>(data.sizes(), values));
    p->set_grad(Tensor());
  }
}

using Weights = std::vector<std::vector<float>>;

/// Returns the whole weights by parameter. All ranks must call it.
inline Weights FullWeights(nn::Module& model) {
  NoGrad no_grad;
  Weights weights;
  for (nn::Parameter* p : model.Parameters()) {
    weights.push_back(FullTensor(p->data()).ToVector<float>());
  }
  return weights;
}

/// Returns the whole gradients by parameter, empty if there is none. All ranks
/// must call it.
inline Weights FullGradients(nn::Module& model) {
  NoGrad no_grad;
  Weights gradients;
  for (nn::Parameter* p : model.Parameters()) {
    gradients.push_back(p->grad().defined()
                            ? FullTensor(p->grad()).ToVector<float>()
                            : std::vector<float>());
  }
  return gradients;
}

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_TRAINING_TESTUTIL_H_
