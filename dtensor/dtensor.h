// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_H_
#define CROSSHATCH_DTENSOR_DTENSOR_H_

/// \file
/// Distributed tensors: a Tensor that is distributed over the ranks of a
/// DeviceMesh by a Layout. It is used like any other Tensor: sizes are global,
/// every op accepts it (op_rule.h), and its gradients are distributed.
///
///     Tensor w = DistributeTensor(whole, mesh, {Shard(0)});
///     Tensor y = MatMul(x, w);            // x distributed over the same mesh
///     std::vector<float> values = FullTensor(y).ToVector<float>();
///
/// An op with distributed and plain inputs is an error, because the layout of a
/// plain tensor is unknown: state it with FromLocal or Replicated. Exceptions
/// are tensors of no dims, and integers and constants that an op's rule accepts
/// (ids of Embedding, targets of CrossEntropy, tables of ApplyRope). These have
/// no gradient that could be lost and are assumed to be equal on all ranks.
///
/// A LayoutSpec is a Layout or a list of placements, one for each axis of the
/// mesh. Units and another order of axes need a Layout.
///
/// Every rank of the mesh makes the same calls in the same order. A rank
/// outside the mesh cannot hold a tensor on it (DeviceMesh::coordinate).

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
/// Returns the position of this rank's shard in the global tensor. A checkpoint
/// writes this part.
Box LocalBoxOf(const Tensor& t);
/// @}

/// Returns this rank's shard, outside of the graph, in the same memory. A plain
/// tensor is returned itself. For code that works on shards: optimizers,
/// checkpoints, FSDP.
Tensor LocalTensor(const Tensor& t);

/// As LocalTensor, for writing. Fails a check that names `what` if `t` must not
/// be written: a view that had to be copied, or a part of another tensor that
/// was redistributed without communication (ops/view.h, redistribute.h).
Tensor WritableLocalTensor(const Tensor& t, const char* what);

/// Returns the distributed tensor of global shape `sizes` whose shard on this
/// rank is `local`, outside of the graph, in the same memory. If `local` has no
/// memory (yet), the result has none. Checks that `local` has the shard's
/// shape.
Tensor MakeDTensor(Tensor local, const DeviceMesh& mesh, const Layout& layout,
                   Shape sizes);

/// Returns `local` as this rank's shard of a tensor with the layout and sizes
/// of `whole`, outside of the graph; `local` itself if `whole` is plain.
Tensor MakeDTensorLike(const Tensor& whole, Tensor local);

/// \name Into and out of the graph of distributed tensors
/// Gradients cross this local/global boundary as local tensors. Only the caller
/// knows their layout, so `grad_layout` has no default.
///
/// The result shares memory with the argument, as a view. In NoGrad, a write to
/// either is visible in the other. Under autograd a write fails a check,
/// because its gradient would be lost; write to a Clone.
/// @{

/// Returns the tensor of global shape `sizes` whose shard on this rank is
/// `local`.
/// \param grad_layout the gradient of `local` is this rank's part of the
///     distributed gradient in this layout. If all ranks use a replicated
///     `local` alike, it is Replicate. If each rank adds its own part to the
///     gradient of what was one tensor before, it is Partial, and the caller
///     reduces it.
Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const LayoutSpec& layout, ShapeView sizes,
                 const LayoutSpec& grad_layout);
/// As above, with the sizes computed: that of a split dim is the sum over the
/// ranks, which exchange their sizes over the side channel if any dim is split.
Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const LayoutSpec& layout, const LayoutSpec& grad_layout);

/// Returns this rank's part.
/// \param grad_layout the local gradients are the ranks' parts of a distributed
///     gradient in this layout. If all ranks use a replicated `t` alike, it is
///     Replicate; if each rank uses it for a part of the result, Partial.
Tensor ToLocal(const Tensor& t, const LayoutSpec& grad_layout);

/// Returns the layout of the distributed tensor that `local` is this rank's
/// shard of, if ToLocal returned it where autograd records; otherwise null.
/// Null for views of it and results of ops. Valid as long as `local`.
const Layout* ToLocalLayout(const Tensor& local);

/// Returns the global tensor on every rank. A plain tensor is returned itself.
/// \param grad_layout as for ToLocal of the replicated tensor.
Tensor FullTensor(const Tensor& t, const LayoutSpec& grad_layout);
/// @}

/// Returns the global tensor on every rank, outside of the graph. A plain
/// tensor is returned itself.
Tensor FullTensor(const Tensor& t);

/// Distributes `full`, which is equal on all ranks, by `layout`. Each rank
/// copies its part; nothing is communicated. A tensor without memory gives one
/// without memory. The result is a leaf outside of the graph and requires a
/// gradient if `full` does.
Tensor DistributeTensor(const Tensor& full, const DeviceMesh& mesh,
                        const LayoutSpec& layout);

/// Returns a constant that is equal on all ranks of the mesh, such as token
/// ids, as a distributed tensor in the same memory, for ops with distributed
/// inputs. It must not require a gradient.
Tensor Replicated(const Tensor& constant, const DeviceMesh& mesh);
/// Does the same on the mesh of `other`. If `other` is plain, returns
/// `constant`.
Tensor ReplicatedLike(const Tensor& constant, const Tensor& other);

/// Returns the one element of `t`, plain or distributed, converted to double.
/// If `t` is distributed, all ranks of the mesh call it, and each receives the
/// value: pending reductions are performed, and the rank that holds the element
/// sends it. Waits for the current stream. Outside of the graph.
///
/// Checks that `t` has one element.
/// \error the rank's first error, if this call or an earlier one poisoned it;
///     kFailedPrecondition in a dry run, which has no values.
absl::StatusOr<double> Item(const Tensor& t);

/// As above without a conversion. Checks that `t` has dtype DTypeOf<T>. For
/// float, double, int32_t and int64_t.
template <typename T>
absl::StatusOr<T> Item(const Tensor& t);

extern template absl::StatusOr<float> Item<float>(const Tensor& t);
extern template absl::StatusOr<double> Item<double>(const Tensor& t);
extern template absl::StatusOr<int32_t> Item<int32_t>(const Tensor& t);
extern template absl::StatusOr<int64_t> Item<int64_t>(const Tensor& t);

/// Distributes the `full` of `source_rank` (a world rank on the mesh) by
/// `layout`, for data that only one rank has read or that may differ between
/// ranks. DistributeTensor takes each rank's own `full` and communicates
/// nothing.
///
/// Called by every rank of the mesh with a `full` of the same sizes and dtype.
/// On other ranks than the source it is not read and needs no memory. The
/// source sends each rank its part from `full` itself: one collective on the
/// current stream, a broadcast for a replicated layout. Pending reductions are
/// filled in locally, as in Redistribute.
///
/// Outside of the graph, as DistributeTensor. A communication error, or sizes
/// that differ, poison the ranks.
Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh, const LayoutSpec& layout);

/// Returns the rows of a global batch of `rows` rows that this rank reads. The
/// batch is split over all ranks of `data`, the data-parallel slice of the
/// job's mesh:
///
///     CH_ASSIGN_OR_RETURN(DeviceMesh data, mesh.Slice("fsdp"));
///     const Interval mine = RowsOf(data, 10);  // [0, 5) or [5, 10) of 2 ranks
///
/// Rows are split as by Shard(0): in the order of the mesh, as evenly as
/// possible. A rank may have none. Ranks along axes that `data` leaves out,
/// such as tp, read the same rows. Communicates nothing.
/// \checks rows >= 0 and that this rank is on `data`.
Interval RowsOf(const DeviceMesh& data, int64_t rows);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_H_
