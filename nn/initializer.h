// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_INITIALIZER_H_
#define CROSSHATCH_NN_INITIALIZER_H_

/// \file
/// Initial values of parameters and buffers. The value of an element depends
/// only on the seed, the name and the element's index in the global tensor, so
/// it is the same on every mesh, and each rank computes its own elements only.
///
///     layer.weight()->set_initializer(init::XavierUniform());

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The element that Initializer::value computes.
class InitElement {
 public:
  InitElement(ShapeView index, ShapeView sizes, uint64_t key,
              uint64_t row_major)
      : index(index), sizes(sizes), key_(key), row_major_(row_major) {}

  /// Its index in the global tensor, and that tensor's sizes.
  const ShapeView index;
  const ShapeView sizes;

  /// Returns the element's `i`th random number, uniform in [0, 1), a multiple
  /// of 2^-24.
  double Uniform(uint64_t i = 0) const;

 private:
  const uint64_t key_;
  const uint64_t row_major_;
};

struct Initializer {
  enum class Kind : uint8_t {
    kZeros,
    kOnes,
    kNormal,
    kConstant,
    kUniform,
    kTruncatedNormal,
    kByElement,
  };
  /// The fan by whose square root the scale of kNormal and kUniform is divided:
  /// the number of inputs of an output, of outputs of an input, or their mean.
  /// Fans are those of the global sizes: a weight is [out, in, ...], and
  /// further dims count in both.
  enum class Fan : uint8_t { kNone, kIn, kOut, kMean };

  Kind kind = Kind::kZeros;
  double stddev = 0.02;  ///< kNormal and kTruncatedNormal.
  double mean = 0;       ///< As stddev; kConstant: the value.
  /// kUniform: in [low, high). kTruncatedNormal: values outside are drawn
  /// again.
  double low = 0;
  double high = 0;
  Fan fan = Fan::kNone;
  /// kByElement: computes the value. Called on the rank's thread, for the
  /// elements of this rank's shard in order.
  std::function<double(const InitElement&)> value = nullptr;

  /// Returns the distribution and its parameters, such as "normal(mean 0,
  /// stddev 0.02)".
  std::string ToString() const;
};

namespace init {

Initializer Constant(double value);
Initializer Normal(double stddev, double mean = 0);
/// Returns a uniform distribution in [low, high).
Initializer Uniform(double low, double high);
/// Returns a normal distribution within [low, high], which must contain at
/// least a tenth of it. The defaults are PyTorch's.
Initializer TruncatedNormal(double stddev = 1, double mean = 0, double low = -2,
                            double high = 2);
/// Return the distributions of Glorot and Bengio, which keep the variance of
/// activations and gradients: standard deviation gain / sqrt(mean of both
/// fans).
Initializer XavierUniform(double gain = 1);
Initializer XavierNormal(double gain = 1);
/// Return the distributions of He et al., for layers before a (leaky) ReLU:
/// standard deviation sqrt(2 / (1 + slope^2) / fan).
Initializer KaimingUniform(double negative_slope = 0,
                           Initializer::Fan fan = Initializer::Fan::kIn);
Initializer KaimingNormal(double negative_slope = 0,
                          Initializer::Fan fan = Initializer::Fan::kIn);
/// Returns GPT-2's distribution for projections that end a residual branch, two
/// in each of `layers` blocks: normal with stddev / sqrt(2 layers).
Initializer ScaledResidual(int64_t layers, double stddev = 0.02);
/// Returns an initializer that calls `value` for each element.
Initializer ByElement(std::function<double(const InitElement&)> value);

}  // namespace init

/// Returns OK if `initializer` can fill `tensor`.
/// \error kInvalidArgument naming `name` and the reason: a fan of fewer than
///     two dims, random numbers for integers, or empty bounds.
absl::Status CheckInitializer(const std::string& name, const Tensor& tensor,
                              const Initializer& initializer);

/// Fills `tensor`, plain or distributed but not partial, in place and outside
/// of the graph. Does nothing in a dry run.
/// \pre CheckInitializer is OK
void FillInitial(const Tensor& tensor, const Initializer& initializer,
                 uint64_t seed, const std::string& name);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_INITIALIZER_H_
