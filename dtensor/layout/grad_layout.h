// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_GRAD_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_GRAD_LAYOUT_H_

/// \file
/// What the layout of a gradient may be where it crosses the border between
/// local and distributed tensors, by mesh axis:
///
/// | the tensor is | its gradient is                                        |
/// |---------------|--------------------------------------------------------|
/// | Shard(d)      | Shard(d)                                               |
/// | Partial(sum)  | Replicate: each summand has the gradient of the sum    |
/// | Replicate     | Replicate, where ranks go on alike and each of them has|
/// |               | the whole gradient; Partial(sum), where each of them   |
/// |               | has a summand of it                                    |
///
/// Anything else would lose a reduction or do it twice: a sum for the gradient
/// of a summand, an average where gradients add up, a split that is not the
/// tensor's. Through pending averages, products, minima and maxima no local
/// gradient passes: what it is of the whole no layout says.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "crosshatch/dtensor/layout/layout.h"

namespace crosshatch {

/// `layout` for the gradient of a tensor that lies so: each summand of a
/// pending reduction has the gradient of the result.
Layout GradientLayout(const Layout& layout);

/// Whether a gradient in `grad` can be one of a tensor in `layout`; pending
/// reductions of `layout` may be of any kind.
/// \param what names the tensor.
/// \error kInvalidArgument for layouts of different meshes or numbers of dims,
/// and for what is not in the table.
absl::Status CheckGradLayout(absl::string_view what, const Layout& layout,
                             const Layout& grad);

/// As above for a tensor at the border, where pending reductions of `layout`
/// are sums.
absl::Status CheckBorderGradLayout(absl::string_view what, const Layout& layout,
                                   const Layout& grad);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_GRAD_LAYOUT_H_
