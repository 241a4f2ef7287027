// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CREATION_H_
#define CROSSHATCH_DTENSOR_CREATION_H_

/// \file
/// Factories of distributed tensors: those of tensor/creation.h with a mesh and
/// a layout, and random ones. Sizes are global. Each rank allocates and fills
/// its own part, and nothing is communicated. The values have the same bits as
/// those of the plain factory, on every mesh and in every layout. Results are
/// leaves outside of the graph.
///
/// If the layout has pending reductions, reducing the result gives these
/// values.
///
/// A layout may be a list of placements, one for each axis of the mesh:
/// Zeros({4, 6}, mesh, {Shard(0), Replicate()}).
///
/// All of them check that the layout is on the mesh and has a dim for each
/// size.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns a tensor with undefined content.
Tensor Empty(ShapeView sizes, const DeviceMesh& mesh, const LayoutSpec& layout,
             DType dtype = kFloat32);
Tensor Zeros(ShapeView sizes, const DeviceMesh& mesh, const LayoutSpec& layout,
             DType dtype = kFloat32);
Tensor Ones(ShapeView sizes, const DeviceMesh& mesh, const LayoutSpec& layout,
            DType dtype = kFloat32);
Tensor Full(ShapeView sizes, double value, const DeviceMesh& mesh,
            const LayoutSpec& layout, DType dtype = kFloat32);
/// Returns 0, 1, ..., n-1.
Tensor Arange(int64_t n, const DeviceMesh& mesh, const LayoutSpec& layout,
              DType dtype = kFloat32);

/// Returns n evenly spaced values from `first` to `last`, both included
/// exactly. Value i is first (1 - w) + last w with w = i / (n - 1), computed in
/// f64. A single value is `first`. Floating point.
Tensor Linspace(double first, double last, int64_t n, DType dtype = kFloat32);
Tensor Linspace(double first, double last, int64_t n, const DeviceMesh& mesh,
                const LayoutSpec& layout, DType dtype = kFloat32);

/// The key of random values, apart from the element's index (random.h).
struct RandomDraw {
  uint64_t seed = 0;
  absl::string_view name = "";
  uint64_t step = 0;
};

/// Returns uniform values in [0, 1), multiples of 2^-24. Floating point.
Tensor Rand(ShapeView sizes, const RandomDraw& draw, DType dtype = kFloat32);
Tensor Rand(ShapeView sizes, const RandomDraw& draw, const DeviceMesh& mesh,
            const LayoutSpec& layout, DType dtype = kFloat32);
/// Returns standard normal values. Floating point.
Tensor Randn(ShapeView sizes, const RandomDraw& draw, DType dtype = kFloat32);
Tensor Randn(ShapeView sizes, const RandomDraw& draw, const DeviceMesh& mesh,
             const LayoutSpec& layout, DType dtype = kFloat32);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_CREATION_H_
