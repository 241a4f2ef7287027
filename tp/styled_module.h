// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_STYLED_MODULE_H_
#define CROSSHATCH_TP_STYLED_MODULE_H_

/// \file
/// What ParallelizeModule knows of one module of a tree while it lays a plan.

#include <string>

#include "crosshatch/nn/module.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {

struct StyledModule {
  nn::NamedModule named;
  /// What the plan that is being laid gives it; null where it says nothing.
  Style style;
  /// By which it gives that.
  std::string pattern;
};

/// The style that an earlier plan has given the module; null for none.
const ParallelStyle* LaidStyle(const nn::Module& module);
void SetLaidStyle(nn::Module& module, Style style);

/// What the module has or is about to get; null for none.
const ParallelStyle* StyleOf(const StyledModule& module);

/// Whether the module has parameters or buffers of its own that are no
/// DTensors.
bool HasPlainParameters(const nn::Module& module);

/// In quotes.
std::string Quoted(const std::string& name);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_STYLED_MODULE_H_
