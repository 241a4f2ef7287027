// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/ops/item.h"

#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/ops/dtensor.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// The element as a plain tensor that has been computed.
Tensor WholeOf(const Tensor& t) {
  if (!t.is_distributed()) return t;
  const NoGrad no_grad;
  CommOrigin origin = CommOrigin::Explicit();
  origin.about = "Item, which every rank of the mesh calls";
  const Layout whole = Layout::Replicated(MeshOf(t).layout(), t.ndim());
  return LocalTensor(Apply1(RedistributeOp(whole, origin), {t}));
}

absl::StatusOr<Tensor> Computed(const Tensor& t) {
  CH_CHECK(t.defined() && t.numel() == 1)
      << "Item of " << t.Describe() << ", which has not one element";
  RankContext& context = RankContext::Current();
  const Tensor whole = WholeOf(t);
  if (whole.device().is_meta()) {
    return absl::FailedPreconditionError("Item: a dry run has no values");
  }
  context.current_stream().Synchronize();
  CH_RETURN_IF_ERROR(context.status());
  return whole;
}

}  // namespace

absl::StatusOr<double> Item(const Tensor& t) {
  CH_ASSIGN_OR_RETURN(const Tensor whole, Computed(t));
  return whole.ToVector<double>()[0];
}

template <typename T>
absl::StatusOr<T> Item(const Tensor& t) {
  CH_CHECK(t.defined() && t.dtype() == DTypeOf<T>)
      << "Item<" << Name(DTypeOf<T>) << "> of " << t.Describe();
  CH_ASSIGN_OR_RETURN(const Tensor whole, Computed(t));
  return whole.ToVector<T>()[0];
}

template absl::StatusOr<float> Item<float>(const Tensor& t);
template absl::StatusOr<double> Item<double>(const Tensor& t);
template absl::StatusOr<int32_t> Item<int32_t>(const Tensor& t);
template absl::StatusOr<int64_t> Item<int64_t>(const Tensor& t);

}  // namespace crosshatch
