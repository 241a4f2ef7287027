// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_

/// \file
/// For tests of distributed tensors: the layouts there are, tensors in them
/// made from dense ones, and comparison with dense ones.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Runs `body` on every rank of a mesh of that shape, axes "a", "b", ..., and
/// collects what it complains of; expects no complaints. A complaint is a
/// non-empty string; after the first ones a rank stops.
class Complaints {
 public:
  /// \returns whether the rank should go on.
  bool Add(std::string text);
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
};
void OnMesh(const std::vector<int>& shape,
            const std::function<void(const DeviceMesh&, Complaints&)>& body,
            const LocalOptions& options = {});

/// Every layout of a tensor of `ndim` dims on `mesh` with unit 1, every order
/// of axes that split one dim included; with pending sums where `sums`.
std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim, bool sums);
/// As above with these pending reductions, and `unit` in every dim that is
/// split.
std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim,
                               const std::vector<ReduceOp>& ops,
                               int64_t unit = 1);

/// Small whole numbers, different for different seeds: sums of products of them
/// are exact.
Tensor Numbers(ShapeView sizes, int seed, DType dtype = kFloat32);
/// Numbers between -1 and 1.
Tensor Fractions(ShapeView sizes, int seed);

/// `dense` in `layout`, a leaf. Where reductions are pending the operands
/// differ from rank to rank, and are whole if `dense` is.
Tensor Spread(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout);

/// What is wrong with `actual` (plain or distributed) beside `dense`; empty if
/// nothing. Elements may differ by `tolerance` times the larger of 1 and their
/// size.
std::string Differs(const Tensor& actual, const Tensor& dense,
                    double tolerance = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_
