// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/executor.h"

#include <gtest/gtest.h>

#include <vector>

#include "crosshatch/tensor/creation.h"

namespace crosshatch {
namespace {

// Returns the elements of the segments, in order.
std::vector<float> Read(const SegmentList& segments) {
  std::vector<float> values;
  for (const Segment& segment : segments) {
    const auto* data = static_cast<const float*>(segment.data);
    for (int64_t run = 0; run < segment.runs; ++run) {
      for (int64_t i = 0; i < segment.run_elems; ++i) {
        values.push_back(data[run * segment.stride_elems + i]);
      }
    }
  }
  return values;
}

// The same by indices.
std::vector<float> Pick(const Tensor& t, const Box& box) {
  std::vector<float> values;
  if (box.empty()) return values;
  Shape index(box.ndim(), 0);
  while (true) {
    int64_t at = 0;
    for (int d = 0; d < box.ndim(); ++d) {
      at += (box.offsets[d] + index[d]) * t.strides()[d];
    }
    values.push_back(t.data<float>()[at]);
    int d = box.ndim() - 1;
    while (d >= 0 && ++index[d] == box.sizes[d]) index[d--] = 0;
    if (d < 0) return values;
  }
}

Tensor Counting(Shape sizes) {
  const Tensor flat = Arange(NumElements(sizes));
  const Shape strides = ContiguousStrides(sizes);
  return MakeView(flat.storage(), 0, std::move(sizes), strides, kFloat32);
}

TEST(Segments, NameTheElementsOfEveryBoxInOrder) {
  const Tensor dense = Counting({3, 4, 2, 5});
  const Tensor turned =
      MakeView(dense.storage(), 0, {5, 3, 2, 4}, {1, 40, 5, 10}, kFloat32);
  for (const Tensor& t : {dense, turned}) {
    for (int64_t a = 0; a <= t.size(0); ++a) {
      for (int64_t b = 0; b <= t.size(1); ++b) {
        for (int64_t c = 0; c <= t.size(2); ++c) {
          for (int64_t d = 0; d <= t.size(3); ++d) {
            const Box box = {{t.size(0) - a, 0, t.size(2) - c, 0},
                             {a, b, c, d}};
            EXPECT_EQ(Read(SegmentsOf(t, box)), Pick(t, box)) << ToString(box);
          }
        }
      }
    }
  }
}

TEST(Segments, AreAsFewAsTheStridesAllow) {
  const Tensor t = Counting({3, 4, 5});
  EXPECT_EQ(SegmentsOf(t, WholeBox(t.sizes())).size(), 1u);
  EXPECT_EQ(SegmentsOf(t, WholeBox(t.sizes()))[0].runs, 1);
  // Whole rows of the inner dims; runs of one stride; one more level.
  EXPECT_EQ(SegmentsOf(t, {{1, 0, 0}, {2, 4, 5}})[0].run_elems, 40);
  const SegmentList columns = SegmentsOf(t, {{0, 0, 1}, {3, 4, 2}});
  ASSERT_EQ(columns.size(), 1u);
  EXPECT_EQ(columns[0].runs, 12);
  EXPECT_EQ(SegmentsOf(t, {{0, 1, 1}, {3, 2, 2}}).size(), 3u);
  EXPECT_TRUE(SegmentsOf(t, {{0, 0, 0}, {3, 0, 5}}).empty());
}

TEST(Segments, OfATensorOfNoDimsAreOneElement) {
  const Tensor t = Full({}, 7);
  EXPECT_EQ(Read(SegmentsOf(t, WholeBox({}))), std::vector<float>{7});
}

TEST(Segments, AreNullWhereThereIsNoMemory) {
  const Tensor t =
      MakeView(Zeros({0, 4}).storage(), 0, {0, 4}, {4, 1}, kFloat32);
  EXPECT_TRUE(SegmentsOf(t, WholeBox(t.sizes())).empty());
}

}  // namespace
}  // namespace crosshatch
