// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_SEQUENTIAL_H_
#define CROSSHATCH_NN_LAYERS_SEQUENTIAL_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// Modules one after the other, named "0", "1", ...: each gets all outputs of
/// the one before. Without modules it returns its inputs.
///
///     Sequential mlp;
///     mlp.Add<Linear>(16, 64);
///     mlp.Add<Gelu>();
///     mlp.Add<Linear>(64, 16);
class Sequential final : public Module {
 public:
  const char* type_name() const override { return "Sequential"; }

  /// Makes an M of `args` and adds it at the end.
  template <typename M, typename... Args>
  M& Add(Args&&... args) {
    return Make<M>(std::to_string(size()), std::forward<Args>(args)...);
  }
  /// Makes it from options by name: Add<Linear>({.in = 16, .out = 64}).
  template <typename M>
  M& Add(const typename M::Options& options) {
    return Add<M, const typename M::Options&>(options);
  }

  size_t size() const { return children().size(); }
  /// \checks i < size()
  Module& operator[](size_t i) const;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_SEQUENTIAL_H_
