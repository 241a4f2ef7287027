// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_WRAP_LIKE_H_
#define CROSSHATCH_NN_WRAP_LIKE_H_

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// `local` as the part that this rank holds of a tensor that lies like `whole`:
/// `local` itself where that is plain.
inline Tensor WrapLike(const Tensor& whole, const Tensor& local) {
  if (!whole.is_distributed()) return local;
  return MakeDTensor(local, MeshOf(whole), LayoutOf(whole), whole.sizes());
}

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_WRAP_LIKE_H_
