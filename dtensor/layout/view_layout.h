// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_VIEW_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_VIEW_LAYOUT_H_

/// \file
/// Layouts of views that split and merge dims.

#include <optional>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// The layout in which a tensor of global sizes `out` has on every rank the
/// elements that one of sizes `in` has there in `layout`, elements counted in
/// row-major order; pending reductions stay. nullopt where there is none: if
/// there is one, it is found.
///
///     [6, 4] in {tp} {}   as [24]:       {tp}/4 (the unit: whole rows)
///     [6, 4] in {} {tp}   as [24]:       none, each row is on several ranks
///     [2, 4] in {dp} {tp} as [8]:        {dp,tp}
///     [20]   in {tp}/4    as [5, 4]:     {tp} {}
///
/// \pre as many elements, checked
std::optional<Layout> ViewLayout(const Layout& layout, ShapeView in,
                                 ShapeView out);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_VIEW_LAYOUT_H_
