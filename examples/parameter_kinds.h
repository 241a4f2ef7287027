// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PARAMETER_KINDS_H_
#define CROSSHATCH_EXAMPLES_PARAMETER_KINDS_H_

/// \file
/// Groups the parameters of a model by kind: parameters of blocks that differ
/// only in the block's number are of one kind.

#include <string>
#include <vector>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::examples {

struct ParameterKind {
  std::string name;    ///< "layers.*.mlp.up_proj.weight"
  std::string layout;  ///< "[S(0),R]"; "plain" if not distributed.
  Shape sizes;
  int count = 0;
  const nn::Parameter* first = nullptr;
};

/// Returns the kinds in the order of the model's parameters.
std::vector<ParameterKind> ParameterKinds(nn::Module& model);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PARAMETER_KINDS_H_
