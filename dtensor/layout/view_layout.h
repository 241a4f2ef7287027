// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_VIEW_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_VIEW_LAYOUT_H_

/// \file
/// Layouts of views that split and merge dims.

#include <optional>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Returns the layout in which a view of global sizes `out` has, on every rank,
/// the elements that a tensor of sizes `in` has there in `layout`, counted in
/// row-major order. Pending reductions stay. Returns nullopt if and only if
/// there is no such layout.
///
///     [6, 4] in {tp} {}   as [24]:       {tp}/4 (the unit: whole rows)
///     [6, 4] in {} {tp}   as [24]:       none, each row is on several ranks
///     [2, 4] in {dp} {tp} as [8]:        {dp,tp}
///     [20]   in {tp}/4    as [5, 4]:     {tp} {}
///
/// \pre equal numbers of elements, checked
std::optional<Layout> ViewLayout(const Layout& layout, ShapeView in,
                                 ShapeView out);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_VIEW_LAYOUT_H_
