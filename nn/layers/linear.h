// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_LINEAR_H_
#define CROSSHATCH_NN_LAYERS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/ops/float8.h"

namespace crosshatch::nn {

struct LinearOptions {
  /// Features of the input and of the output. For Linear(options) only.
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  /// Of the weight's normal distribution; the bias is zero.
  double stddev = 0.02;
};

/// y = x weight^T + bias: [..., in] to [..., out]. If x and the weight have
/// different dtypes, it computes in the weight's and returns x's. With a float8
/// recipe the products, and those of both gradients, are in float8
/// (tensor/ops/float8.h).
class Linear final : public Module {
 public:
  using Options = LinearOptions;

  /// \checks that options.in and options.out are above 0.
  explicit Linear(const LinearOptions& options);
  /// \checks that options.in and options.out are 0.
  Linear(int64_t in_features, int64_t out_features,
         const LinearOptions& options = {});
  /// Creates a layer with the weight [out, in] of another module (tied).
  explicit Linear(std::shared_ptr<Parameter> weight);

  /// [out, in]
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [out]; null if there is none.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }

  /// Returns the float8 recipe, which ConvertToFloat8Training sets (float8.h).
  std::optional<Float8Recipe> float8() const { return float8_; }
  void set_float8(std::optional<Float8Recipe> recipe) { float8_ = recipe; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  void Init(int64_t in_features, int64_t out_features,
            const LinearOptions& options);

  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
  std::optional<Float8Recipe> float8_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_LINEAR_H_
