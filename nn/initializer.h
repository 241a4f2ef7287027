// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_INITIALIZER_H_
#define CROSSHATCH_NN_INITIALIZER_H_

/// \file
/// How parameters and buffers get their first values. The value of an element
/// follows from the seed, the name and the element's index in the global
/// tensor, and from nothing else, so it is the same on every mesh, and each
/// rank makes just its own.
///
///     layer.weight()->set_initializer(init::XavierUniform());

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// One element that is to be filled.
class InitElement {
 public:
  InitElement(ShapeView index, ShapeView sizes, uint64_t key,
              uint64_t row_major)
      : index(index), sizes(sizes), key_(key), row_major_(row_major) {}

  /// Where it lies in the global tensor, and the sizes of that.
  const ShapeView index;
  const ShapeView sizes;

  /// The element's `i`th random number, even in [0, 1), a multiple of 2^-24.
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
  /// What the spread of kNormal and kUniform is divided by the root of: the
  /// number of elements that a unit of the output reads, or that one of the
  /// input is read by, or the mean of both. Of the global sizes: a weight is
  /// [out, in, ...], and what follows counts in both.
  enum class Fan : uint8_t { kNone, kIn, kOut, kMean };

  Kind kind = Kind::kZeros;
  double stddev = 0.02;  ///< kNormal and kTruncatedNormal.
  double mean = 0;       ///< As stddev; kConstant: the value.
  /// kUniform: in [low, high). kTruncatedNormal: what is beyond is drawn anew.
  double low = 0;
  double high = 0;
  Fan fan = Fan::kNone;
  /// kByElement: the value. Called on the rank's thread, for elements of this
  /// rank's part in order.
  std::function<double(const InitElement&)> value = nullptr;
};

namespace init {

Initializer Constant(double value);
Initializer Normal(double stddev, double mean = 0);
/// Even in [low, high).
Initializer Uniform(double low, double high);
/// Normal, what is not in [low, high] drawn anew: at least a tenth of the
/// distribution is to be in it. The defaults are those of torch.
Initializer TruncatedNormal(double stddev = 1, double mean = 0, double low = -2,
                            double high = 2);
/// Spreads that keep the variance of activations and gradients, by Glorot and
/// Bengio: standard deviation gain / sqrt(mean of both fans).
Initializer XavierUniform(double gain = 1);
Initializer XavierNormal(double gain = 1);
/// By He et al., for what a (leaky) ReLU follows: standard deviation
/// sqrt(2 / (1 + slope^2) / fan).
Initializer KaimingUniform(double negative_slope = 0,
                           Initializer::Fan fan = Initializer::Fan::kIn);
Initializer KaimingNormal(double negative_slope = 0,
                          Initializer::Fan fan = Initializer::Fan::kIn);
/// GPT-2's for projections that end a residual branch, of which a model of
/// `layers` blocks has two each: normal of stddev / sqrt(2 layers).
Initializer ScaledResidual(int64_t layers, double stddev = 0.02);
/// Gives each element what a function of the user's says.
Initializer ByElement(std::function<double(const InitElement&)> value);

}  // namespace init

/// Whether `initializer` can fill `tensor`.
/// \error kInvalidArgument naming `name` and what does not fit: a fan of fewer
///     than two dims, random numbers for integers, bounds that leave nothing.
absl::Status CheckInitializer(const std::string& name, const Tensor& tensor,
                              const Initializer& initializer);

/// Fills `tensor`, plain or distributed but not partial, in place and outside
/// of the graph. Nothing in a dry run. \pre CheckInitializer
void FillInitial(const Tensor& tensor, const Initializer& initializer,
                 uint64_t seed, const std::string& name);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_INITIALIZER_H_
