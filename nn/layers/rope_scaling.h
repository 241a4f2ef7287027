// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_ROPE_SCALING_H_
#define CROSSHATCH_NN_LAYERS_ROPE_SCALING_H_

/// \file
/// Rotary frequencies, and their scaling for positions beyond those of a
/// model's first training.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

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

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_ROPE_SCALING_H_
