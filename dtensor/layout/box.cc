// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/box.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

Box WholeBox(ShapeView shape) {
  return {Shape(shape.size(), 0), Shape(shape.begin(), shape.end())};
}

Box Intersect(const Box& a, const Box& b) {
  CH_CHECK_EQ(a.ndim(), b.ndim());
  Box box;
  for (int d = 0; d < a.ndim(); ++d) {
    const Interval both = Intersect(a.interval(d), b.interval(d));
    box.offsets.push_back(both.begin);
    box.sizes.push_back(both.size());
  }
  return box;
}

bool Contains(const Box& outer, const Box& inner) {
  CH_CHECK_EQ(outer.ndim(), inner.ndim());
  if (inner.empty()) return true;
  for (int d = 0; d < outer.ndim(); ++d) {
    if (!Contains(outer.interval(d), inner.interval(d))) return false;
  }
  return true;
}

Box RelativeTo(const Box& box, ShapeView origin) {
  CH_CHECK_EQ(box.offsets.size(), origin.size());
  Box moved = box;
  for (size_t d = 0; d < origin.size(); ++d) moved.offsets[d] -= origin[d];
  return moved;
}

std::string ToString(const Box& box) {
  std::string text = "[";
  for (int d = 0; d < box.ndim(); ++d) {
    const Interval interval = box.interval(d);
    absl::StrAppend(&text, d == 0 ? "" : ", ", interval.begin, ":",
                    interval.end);
  }
  return text + "]";
}

}  // namespace crosshatch
