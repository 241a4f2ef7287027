// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/segments.h"

#include <cstddef>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

struct Level {
  int64_t size;
  int64_t stride;
};

// Returns the dims of the box, innermost first, without those of size 1, and
// with adjacent dims joined if they are contiguous.
absl::InlinedVector<Level, 5> Coalesce(ShapeView sizes, ShapeView strides) {
  absl::InlinedVector<Level, 5> levels;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (!levels.empty() &&
        strides[i] == levels.back().stride * levels.back().size) {
      levels.back().size *= sizes[i];
    } else {
      levels.push_back({sizes[i], strides[i]});
    }
  }
  return levels;
}

}  // namespace

void AppendSegments(const Tensor& t, const Box& box, SegmentList& segments) {
  CH_CHECK_EQ(box.ndim(), t.ndim());
  if (box.empty()) return;
  const ShapeView strides = t.strides();
  int64_t offset = 0;
  for (int d = 0; d < box.ndim(); ++d) offset += box.offsets[d] * strides[d];

  const auto levels = Coalesce(box.sizes, strides);
  Segment segment;
  segment.run_elems = 1;
  size_t next = 0;
  if (next < levels.size() && levels[next].stride == 1) {
    segment.run_elems = levels[next++].size;
  }
  if (next < levels.size()) {
    segment.runs = levels[next].size;
    segment.stride_elems = levels[next++].stride;
  }

  auto* const data = static_cast<std::byte*>(t.raw_data());
  const int64_t element = SizeOf(t.dtype());
  absl::InlinedVector<int64_t, 5> index(levels.size() - next, 0);
  while (true) {
    segment.data = data == nullptr ? nullptr : data + offset * element;
    segments.push_back(segment);
    size_t i = 0;
    for (; i < index.size(); ++i) {
      offset += levels[next + i].stride;
      if (++index[i] < levels[next + i].size) break;
      offset -= levels[next + i].stride * levels[next + i].size;
      index[i] = 0;
    }
    if (i == index.size()) return;
  }
}

SegmentList SegmentsOf(const Tensor& t, const Box& box) {
  SegmentList segments;
  AppendSegments(t, box, segments);
  return segments;
}

}  // namespace crosshatch
