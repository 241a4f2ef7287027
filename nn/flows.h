// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_FLOWS_H_
#define CROSSHATCH_NN_FLOWS_H_

/// \file
/// Which module's output is which module's input. Only ForwardImpl knows; a
/// module that says it beforehand has the plans that are laid on it checked
/// (tp::ParallelizeModule).

#include <vector>

namespace crosshatch::nn {

class Module;

/// The first output of `from` is the first input of `to` and of the modules
/// around `to` that are not around `from`, as it is or element by element
/// another: how it lies over ranks stays.
struct Flow {
  const Module* from;
  const Module* to;
};

/// Base, beside Module, of a module that knows flows between modules below it.
class TellsFlows {
 public:
  virtual ~TellsFlows() = default;
  /// Of modules that are registered below this one.
  virtual std::vector<Flow> flows() const = 0;
};

/// Base, beside Module, of a module whose first output is its first input with
/// each element for itself changed, and which has no parameters.
class Elementwise {
 public:
  virtual ~Elementwise() = default;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_FLOWS_H_
