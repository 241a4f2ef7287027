// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODULE_ROOT_H_
#define CROSSHATCH_NN_MODULE_ROOT_H_

#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// The root of the tree that `module` is in: itself where it has no parent.
/// Owned as it is; no other module until one of them gets a parent.
inline Module& RootOf(Module& module) {
  Module* root = &module;
  while (root->parent() != nullptr) root = root->parent();
  return *root;
}

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODULE_ROOT_H_
