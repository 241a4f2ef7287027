// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_ROPE_H_
#define CROSSHATCH_NN_LAYERS_ROPE_H_

/// \file
/// Rotary position embedding: frequencies, their scaling for positions beyond
/// those of a model's first training, and tables of angles.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The kinds in Hugging Face's configs ("rope_type"), with the same
/// frequencies, computed in float32.
///
/// Below, f is theta^(-2i / head_dim) and n = original_positions.
struct RopeScaling {
  enum class Kind : uint8_t {
    kNone,
    kLinear,    ///< f / factor.
    kDynamic,   ///< Of a larger theta where a sequence is longer than n.
    kLlama3,    ///< Low frequencies / factor, high ones kept, a ramp between.
    kYarn,      ///< A ramp by the number of turns within n positions.
    kLongRope,  ///< f / short_factor[i], or long_factor[i] beyond n positions.
  };
  Kind kind = Kind::kNone;
  double factor = 1;  ///< At least 1; of all kinds but kLongRope.
  /// Positions of the first training; of all kinds but kLinear.
  int64_t original_positions = 0;
  /// The factor of cos and sin; kYarn and kLongRope.
  double attention_factor = 1;
  double low_freq_factor = 1;   ///< kLlama3: the turns within n positions below
  double high_freq_factor = 4;  ///< and above which a frequency is low or high.
  double beta_fast = 32;        ///< kYarn: the turns from which f is kept, and
  double beta_slow = 1;         ///< those up to which it is divided.
  bool truncate = true;         ///< kYarn: the ramp begins and ends at whole i.
  /// kLongRope: head_dim / 2 each.
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};

  /// Returns whether a sequence beyond original_positions has other frequencies
  /// than a shorter one.
  bool DependsOnLength() const {
    return kind == Kind::kDynamic || kind == Kind::kLongRope;
  }

  /// \error kInvalidArgument naming the first invalid value.
  absl::Status Validate(int64_t head_dim, double theta) const;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

/// Returns the angle between adjacent positions for each of the head_dim / 2
/// pairs, in a sequence of `length` positions.
/// \pre head_dim is even; scaling.Validate(head_dim, theta) is OK
std::vector<float> RotaryFrequencies(int64_t head_dim, double theta,
                                     const RopeScaling& scaling,
                                     int64_t length);

/// cos and sin of position * f[i], i < head_dim / 2, with the frequencies of
/// RotaryFrequencies, times its attention_factor. Frequency and angle are
/// rounded to float32 as Hugging Face's are, so that models trained there
/// compute the same here.
class RotaryTable {
 public:
  /// \pre head_dim is even; scaling.Validate(head_dim, theta) is OK
  RotaryTable(int64_t head_dim, double theta, RopeScaling scaling = {});

  /// \name Tables for positions 0 .. length-1
  /// [length, head_dim / 2] f32, on the rank's device; kept until another
  /// length is requested.
  /// @{
  const Tensor& Cos(int64_t length);
  const Tensor& Sin(int64_t length);
  /// @}

 private:
  void Prepare(int64_t length);

  const int64_t head_dim_;
  const double theta_;
  const RopeScaling scaling_;
  Tensor cos_;
  Tensor sin_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_ROPE_H_
