// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/creation.h"

#include <optional>

#include "absl/functional/function_ref.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"

namespace crosshatch {
namespace {

// Returns the values of `made` in a layout with pending reductions. The result
// may share the memory of `made`, which has no other users, and may be written.
Tensor InSums(const Tensor& made, const Layout& layout) {
  return MakeDTensor(LocalTensor(Redistribute(made, layout)), MeshOf(made),
                     layout, made.sizes());
}

// Creates a tensor in `layout`; `part` computes the local part for this rank's
// box.
Tensor Make(const char* what, ShapeView sizes, const DeviceMesh& mesh,
            const LayoutSpec& spec,
            absl::FunctionRef<Tensor(const Box& here)> part) {
  const Layout& layout =
      spec.Of(what, mesh.layout(), static_cast<int>(sizes.size()));
  CH_CHECK(layout.mesh() == mesh.layout())
      << what << ": the layout " << layout.ToString() << " is on "
      << layout.mesh().ToString() << ", the mesh is " << mesh.ToString();
  for (const int64_t size : sizes) {
    CH_CHECK_GE(size, 0) << what << " of sizes " << ToString(sizes);
  }
  const std::optional<MeshCoordinate> here = mesh.coordinate();
  CH_CHECK(here.has_value())
      << what << ": this rank is not on " << mesh.ToString();
  NoGrad no_grad;
  const Layout whole = layout.WithoutPartials();
  const Tensor made = MakeDTensor(part(whole.LocalBox(sizes, *here)), mesh,
                                  whole, Shape(sizes.begin(), sizes.end()));
  return whole == layout ? made : InSums(made, layout);
}

Tensor Count(int64_t start, int64_t count, DType dtype) {
  const Tensor part = Empty({count}, dtype);
  internal::Launch(&KernelTable::arange,
                   ArangeArgs{.out = part.raw_data(),
                              .dtype = dtype,
                              .count = count,
                              .start = static_cast<double>(start)});
  return part;
}

// Returns the values `start`, ..., start + count - 1 of all `n`.
Tensor LinspacePart(double first, double last, int64_t n, int64_t start,
                    int64_t count, DType dtype) {
  CH_CHECK(IsFloatingPoint(dtype) && n >= 0)
      << "Linspace of " << n << " values of " << Name(dtype);
  const double steps = n > 1 ? static_cast<double>(n - 1) : 1;
  const Tensor w = Div(Count(start, count, kFloat64), steps);
  const Tensor rest = Add(Neg(w), 1.0);
  return ToDType(Add(Mul(rest, first), Mul(w, last)), dtype);
}

using FillFunction = void (*)(const Tensor& t, uint64_t seed,
                              absl::string_view name, double a, double b,
                              uint64_t step);

Tensor Random(FillFunction fill, ShapeView sizes, const RandomDraw& draw,
              DType dtype) {
  const Tensor t = Empty(sizes, dtype);
  fill(t, draw.seed, draw.name, 0, 1, draw.step);
  return t;
}

Tensor Random(const char* what, FillFunction fill, ShapeView sizes,
              const RandomDraw& draw, const DeviceMesh& mesh,
              const LayoutSpec& spec, DType dtype) {
  const Layout& layout =
      spec.Of(what, mesh.layout(), static_cast<int>(sizes.size()));
  const Layout whole = layout.WithoutPartials();
  const Tensor t = Empty(sizes, mesh, whole, dtype);
  fill(t, draw.seed, draw.name, 0, 1, draw.step);
  if (whole == layout) return t;
  NoGrad no_grad;
  return InSums(t, layout);
}

}  // namespace

Tensor Empty(ShapeView sizes, const DeviceMesh& mesh, const LayoutSpec& layout,
             DType dtype) {
  return Make("Empty", sizes, mesh, layout,
              [dtype](const Box& here) { return Empty(here.sizes, dtype); });
}

Tensor Zeros(ShapeView sizes, const DeviceMesh& mesh, const LayoutSpec& layout,
             DType dtype) {
  return Full(sizes, 0, mesh, layout, dtype);
}

Tensor Ones(ShapeView sizes, const DeviceMesh& mesh, const LayoutSpec& layout,
            DType dtype) {
  return Full(sizes, 1, mesh, layout, dtype);
}

Tensor Full(ShapeView sizes, double value, const DeviceMesh& mesh,
            const LayoutSpec& layout, DType dtype) {
  return Make("Full", sizes, mesh, layout, [value, dtype](const Box& here) {
    return Full(here.sizes, value, dtype);
  });
}

Tensor Arange(int64_t n, const DeviceMesh& mesh, const LayoutSpec& layout,
              DType dtype) {
  return Make("Arange", {n}, mesh, layout, [dtype](const Box& here) {
    return Count(here.offsets[0], here.sizes[0], dtype);
  });
}

Tensor Linspace(double first, double last, int64_t n, DType dtype) {
  NoGrad no_grad;
  return LinspacePart(first, last, n, 0, n, dtype);
}

Tensor Linspace(double first, double last, int64_t n, const DeviceMesh& mesh,
                const LayoutSpec& layout, DType dtype) {
  return Make("Linspace", {n}, mesh, layout,
              [first, last, n, dtype](const Box& here) {
                return LinspacePart(first, last, n, here.offsets[0],
                                    here.sizes[0], dtype);
              });
}

Tensor Rand(ShapeView sizes, const RandomDraw& draw, DType dtype) {
  return Random(FillUniform, sizes, draw, dtype);
}

Tensor Rand(ShapeView sizes, const RandomDraw& draw, const DeviceMesh& mesh,
            const LayoutSpec& layout, DType dtype) {
  return Random("Rand", FillUniform, sizes, draw, mesh, layout, dtype);
}

Tensor Randn(ShapeView sizes, const RandomDraw& draw, DType dtype) {
  return Random(FillNormal, sizes, draw, dtype);
}

Tensor Randn(ShapeView sizes, const RandomDraw& draw, const DeviceMesh& mesh,
             const LayoutSpec& layout, DType dtype) {
  return Random("Randn", FillNormal, sizes, draw, mesh, layout, dtype);
}

}  // namespace crosshatch
