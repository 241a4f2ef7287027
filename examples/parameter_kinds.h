// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PARAMETER_KINDS_H_
#define CROSSHATCH_EXAMPLES_PARAMETER_KINDS_H_

/// \file
/// The parameters of a model in few words: blocks' are of one kind where only
/// the block's number differs.

#include <string>
#include <vector>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::examples {

struct ParameterKind {
  std::string name;    ///< "layers.*.mlp.up_proj.weight"
  std::string layout;  ///< "[S(0),R]"; "plain" where it is not distributed.
  Shape sizes;
  int count = 0;
  /// The first of them.
  const nn::Parameter* first = nullptr;
};

/// In the order in which the model has them.
std::vector<ParameterKind> ParameterKinds(nn::Module& model);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PARAMETER_KINDS_H_
