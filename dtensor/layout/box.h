// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_BOX_H_
#define CROSSHATCH_DTENSOR_LAYOUT_BOX_H_

/// \file
/// Boxes: products of one interval for each dim. Shards and the pieces that
/// move between them consist of boxes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Returns a / b, rounded up.
/// \pre a >= 0, b > 0
inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The integers from `begin`, inclusive, to `end`, exclusive.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }

  friend bool operator==(const Interval& a, const Interval& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

/// Returns the common part; an interval of size 0 if there is none.
inline Interval Intersect(const Interval& a, const Interval& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Returns whether every element of `inner` is in `outer`.
inline bool Contains(const Interval& outer, const Interval& inner) {
  return inner.size() == 0 ||
         (outer.begin <= inner.begin && inner.end <= outer.end);
}

/// Elements [offsets[d], offsets[d] + sizes[d]) in each dim d.
struct Box {
  Shape offsets;
  Shape sizes;

  int ndim() const { return static_cast<int>(sizes.size()); }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return n;
  }
  bool empty() const { return numel() == 0; }
  Interval interval(int dim) const {
    return {offsets[dim], offsets[dim] + sizes[dim]};
  }

  friend bool operator==(const Box& a, const Box& b) {
    return a.offsets == b.offsets && a.sizes == b.sizes;
  }
  friend bool operator!=(const Box& a, const Box& b) { return !(a == b); }
};

/// Returns the box of a whole tensor of shape `shape`.
Box WholeBox(ShapeView shape);

/// Returns the common part, with some size 0 if there is none.
/// \pre a.ndim() == b.ndim()
Box Intersect(const Box& a, const Box& b);

/// Returns whether every element of `inner` is in `outer`.
/// \pre equal ndim()
bool Contains(const Box& outer, const Box& inner);

/// Returns `box` with its offsets relative to `origin`.
Box RelativeTo(const Box& box, ShapeView origin);

/// Returns "[0:2, 3:5]".
std::string ToString(const Box& box);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_BOX_H_
