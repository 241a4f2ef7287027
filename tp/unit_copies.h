// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_UNIT_COPIES_H_
#define CROSSHATCH_TP_UNIT_COPIES_H_

/// \file
/// Units of a projection's output of which neighbouring ranks hold copies: the
/// key heads of grouped queries on more ranks than there are key heads.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::tp {

/// The axis of tensor parallelism seen as two: of units, and of the copies of
/// one. Parameters lie on both; activations come from the whole axis and go
/// back to it.
class UnitCopies {
 public:
  /// \param mesh one axis, of more ranks than `copies`, which divides them.
  /// \param unit features of a unit; there are mesh.size(0) / copies of them.
  static absl::StatusOr<UnitCopies> Create(const DeviceMesh& mesh, int copies,
                                           int64_t unit);

  /// Each parameter [out, ...] of `linear` by units, replicated along copies.
  absl::Status Spread(const nn::Linear& linear) const;

  /// `x`, replicated over the axis, on the mesh of both. Each rank adds a
  /// summand to its gradient.
  Tensor Enter(const Tensor& x) const;

  /// `y` [..., units * unit], computed on the mesh of both, on the whole axis:
  /// [..., ranks * unit], in which each unit stands as often as it has copies,
  /// and each rank has one. Gradients of copies are summands of the unit's.
  Tensor Leave(const Tensor& y) const;

 private:
  UnitCopies(const DeviceMesh& whole, const DeviceMesh& parted, int64_t unit)
      : whole_(whole), parted_(parted), unit_(unit) {}

  DeviceMesh whole_;
  DeviceMesh parted_;
  int64_t unit_;
};

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_UNIT_COPIES_H_
