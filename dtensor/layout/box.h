// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_BOX_H_
#define CROSSHATCH_DTENSOR_LAYOUT_BOX_H_

/// \file
/// Boxes: the products of one interval for each dim that shards, and the
/// pieces that move between them, are made of.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Returns a / b, rounded up. \pre a >= 0, b > 0
inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The integers from `begin` up to but without `end`.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }

  friend bool operator==(const Interval& a, const Interval& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

/// What both hold; an interval of size 0 where they do not meet.
inline Interval Intersect(const Interval& a, const Interval& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Whether every element of `inner` lies in `outer`.
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

/// The whole of a tensor of shape `shape`.
Box WholeBox(ShapeView shape);

/// What both hold, with some size 0 where they do not meet.
/// \pre a.ndim() == b.ndim()
Box Intersect(const Box& a, const Box& b);

/// Whether every element of `inner` lies in `outer`. \pre equal ndim()
bool Contains(const Box& outer, const Box& inner);

/// `box` with its offsets counted from `origin`.
Box RelativeTo(const Box& box, ShapeView origin);

/// "[0:2, 3:5]".
std::string ToString(const Box& box);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_BOX_H_
