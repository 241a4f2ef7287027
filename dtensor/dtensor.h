// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_H_
#define CROSSHATCH_DTENSOR_DTENSOR_H_

/// \file
/// Distributed tensors: a Tensor that is spread over the ranks of a DeviceMesh
/// as a Layout says. It is a Tensor like any other: sizes are global, every op
/// takes it (op_rule.h says how), gradients of it are distributed.
///
///     Tensor w = DistributeTensor(whole, mesh, {Shard(0)});
///     Tensor y = MatMul(x, w);            // x distributed over the same mesh
///     std::vector<float> values = FullTensor(y).ToVector<float>();
///
/// Plain tensors among distributed ones are an error, as it is not known what
/// they are of the whole: FromLocal and Replicated say it. Exceptions are
/// tensors of no dims, and integers and constants where an op's rule allows it
/// (ids of Embedding, targets of CrossEntropy, tables of ApplyRope): they hold
/// no gradient that could be lost, and are taken to be equal on all ranks.
///
/// Where a layout is asked for, a list of placements will do, one for each axis
/// of the mesh (Layout::FromPlacements; what that refuses fails a check). Only
/// units and the order of axes take a Layout.
///
/// Every rank of the mesh makes the same calls in the same order. A rank that
/// is not on the mesh can hold no tensor on it (DeviceMesh::coordinate).

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// \name Parts
/// \pre t.is_distributed(), checked
/// @{
const Layout& LayoutOf(const Tensor& t);
const DeviceMesh& MeshOf(const Tensor& t);
/// Which part of the whole this rank holds: what a checkpoint writes of it.
Box LocalBoxOf(const Tensor& t);
/// @}

/// This rank's part, outside of the graph, in the same memory; a plain tensor's
/// own. For what works on shards as they are: optimizers, checkpoints, FSDP.
Tensor LocalTensor(const Tensor& t);

/// As LocalTensor, for what writes to it. A check that names `what` where `t`
/// is not to be written: a view that had to be copied, or a part of another
/// tensor that was redistributed without communication (ops/view.h,
/// redistribute.h).
Tensor WritableLocalTensor(const Tensor& t, const char* what);

/// The distributed tensor of global shape `sizes` that `local` is this rank's
/// part of, outside of the graph, in the same memory. `local` may have no
/// memory (yet): then so has the result. Checks that it has the shard's shape.
Tensor MakeDTensor(Tensor local, const DeviceMesh& mesh, const Layout& layout,
                   Shape sizes);

/// \name Into and out of the graph of distributed tensors
/// Gradients cross such a border as local tensors, and only the caller knows
/// what these are of the whole: `grad_layout` says it, there is no default.
///
/// The result lies in the memory of the argument, as a view does: in NoGrad a
/// write to one of them shows in the other, and where autograd records it fails
/// a check, for its gradient would be lost; write to a Clone.
/// @{

/// The tensor of global shape `sizes` that `local` is this rank's part of.
/// \param grad_layout the gradient that `local` gets is this rank's part of the
///     distributed one in this layout. Where ranks go on alike with a
///     replicated `local`, that is Replicate; where each adds its own part to
///     what was one tensor before, Partial (and someone reduces it).
Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const Layout& layout, ShapeView sizes,
                 const Layout& grad_layout);
/// As above with the sizes worked out: of dims that are split they are the sums
/// over the ranks, which are exchanged over the side channel if there are any.
Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const Layout& layout, const Layout& grad_layout);

Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 absl::Span<const Placement> placements,
                 absl::Span<const Placement> grad_placements);

/// This rank's part.
/// \param grad_layout the local gradients that come back are the ranks' parts
///     of a distributed one in this layout. For a replicated `t` that each rank
///     uses alike it is Replicate; where each uses it for a part of the result,
///     Partial.
Tensor ToLocal(const Tensor& t, const Layout& grad_layout);
Tensor ToLocal(const Tensor& t, absl::Span<const Placement> grad_placements);

/// The whole tensor on every rank; a plain one for itself.
/// \param grad_layout as for ToLocal of the replicated tensor.
Tensor FullTensor(const Tensor& t, const Layout& grad_layout);
/// @}

/// The whole tensor on every rank, outside of the graph; a plain one for
/// itself.
Tensor FullTensor(const Tensor& t);

/// `full`, equal on all ranks, spread as `layout` says: each rank copies its
/// part and nothing is communicated. A tensor without memory gives one without
/// memory. Outside of the graph: the result is a leaf, and requires a gradient
/// if `full` does.
Tensor DistributeTensor(const Tensor& full, const DeviceMesh& mesh,
                        const Layout& layout);
Tensor DistributeTensor(const Tensor& full, const DeviceMesh& mesh,
                        absl::Span<const Placement> placements);

/// A constant that is equal on all ranks of the mesh, such as token ids, to
/// meet distributed tensors in an op; in the same memory. Must not require a
/// gradient.
Tensor Replicated(const Tensor& constant, const DeviceMesh& mesh);
/// Does the same on the mesh of `other`; gives `constant` itself if that is
/// plain.
Tensor ReplicatedLike(const Tensor& constant, const Tensor& other);

/// The one element of `t`, plain or distributed, converted to double. What is
/// distributed all ranks of the mesh call for alike, and each gets the value:
/// pending reductions are done, and the rank that has the element sends it.
/// Waits for the current stream. Outside of the graph.
///
/// Checks that `t` has one element.
/// \error the rank's first error where it is poisoned, by this call or before;
/// kFailedPrecondition in a dry run, which has no values.
absl::StatusOr<double> Item(const Tensor& t);

/// As above without a conversion: checks that `t` is of dtype DTypeOf<T>. For
/// float, double, int32_t and int64_t.
template <typename T>
absl::StatusOr<T> Item(const Tensor& t);

extern template absl::StatusOr<float> Item<float>(const Tensor& t);
extern template absl::StatusOr<double> Item<double>(const Tensor& t);
extern template absl::StatusOr<int32_t> Item<int32_t>(const Tensor& t);
extern template absl::StatusOr<int64_t> Item<int64_t>(const Tensor& t);

/// The tensor that `source_rank` (a world rank on the mesh) has as `full`,
/// spread as `layout` says: where only one rank has read a file, or ranks may
/// have computed different values. DistributeTensor takes each rank's own
/// `full` and communicates nothing.
///
/// Called by every rank of the mesh with a `full` of the same sizes and dtype;
/// that of the other ranks is not read and needs no memory. The source's is
/// sent from where it lies, to each rank just its part: one collective on the
/// current stream, a broadcast for a replicated layout. A pending reduction is
/// made of the values locally, as by Redistribute.
///
/// Outside of the graph, as DistributeTensor. An error of communication, or
/// sizes that differ, poison the ranks.
Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh, const Layout& layout);
Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh,
                            absl::Span<const Placement> placements);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_H_
