// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_GRAD_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_GRAD_LAYOUT_H_

/// \file
/// The layouts that a gradient may have at the boundary between local and
/// distributed tensors, by mesh axis:
///
/// | the tensor is | its gradient is                                        |
/// |---------------|--------------------------------------------------------|
/// | Shard(d)      | Shard(d)                                               |
/// | Partial(sum)  | Replicate: each summand has the gradient of the sum    |
/// | Replicate     | Replicate, if ranks use it alike and each of them has  |
/// |               | the whole gradient; Partial(sum), if each of them has  |
/// |               | a summand of it                                        |
///
/// Any other layout would lose a reduction or perform it twice: a sum for the
/// gradient of a summand, an average where gradients add up, a split other than
/// the tensor's. No local gradient passes through pending averages, products,
/// minima and maxima, because no layout describes it.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "crosshatch/dtensor/layout/layout.h"

namespace crosshatch {

/// Checks that a gradient in `grad` can belong to a tensor in `layout`, whose
/// pending reductions may be of any kind.
/// \param what names the tensor.
/// \error kInvalidArgument for layouts of different meshes or numbers of dims,
///     and for what is not in the table.
absl::Status CheckGradLayout(absl::string_view what, const Layout& layout,
                             const Layout& grad);

/// As above for a tensor at the boundary, where pending reductions of `layout`
/// must be sums.
absl::Status CheckBoundaryGradLayout(absl::string_view what,
                                     const Layout& layout, const Layout& grad);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_GRAD_LAYOUT_H_
