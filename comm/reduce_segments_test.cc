// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/reduce_segments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

thread_local int sums_run = 0;

// Returns the CPU's kernels with a counter.
const KernelTable& CountingSums() {
  static const KernelTable table = [] {
    KernelTable counting = CpuBackend().kernels();
    counting.accumulate_ranks = [](const AccumulateRanksArgs& args,
                                   KernelContext& context) {
      ++sums_run;
      CpuBackend().kernels().accumulate_ranks(args, context);
    };
    return counting;
  }();
  return table;
}

// Returns the number of kernels.
int SumOf(const std::vector<SegmentList>& sources, const SegmentList& to) {
  const Collective sum = {.kind = CollectiveKind::kReduceScatter,
                          .dtype = kInt32};
  std::vector<SegmentCursor> cursors;
  for (const SegmentList& source : sources) {
    cursors.emplace_back(source, SizeOf(kInt32));
  }
  KernelContext context;
  sums_run = 0;
  ReduceSegments(sum, absl::MakeSpan(cursors),
                 SegmentCursor(to, SizeOf(kInt32)), NumElements(to),
                 CountingSums(), context);
  return sums_run;
}

std::vector<int32_t> ElementsOf(const SegmentList& list) {
  std::vector<int32_t> elements;
  SegmentCursor cursor(list, SizeOf(kInt32));
  for (; cursor.contiguous() > 0; cursor.Advance(1)) {
    elements.push_back(*reinterpret_cast<const int32_t*>(cursor.data()));
  }
  return elements;
}

// This rank's summand is in the gradient, the others' were received
// consecutively.
TEST(ReduceSegmentsTest, ColumnsOfAMatrixTakeOneKernel) {
  std::vector<int32_t> gradient(100 * 30), received(100 * 10), sum(100 * 10);
  std::iota(gradient.begin(), gradient.end(), 1);
  std::iota(received.begin(), received.end(), 5000);
  const SegmentList columns = {{.data = &gradient[10],
                                .run_elems = 10,
                                .runs = 100,
                                .stride_elems = 30}};
  const SegmentList packed = {{.data = received.data(), .run_elems = 1000}};
  const SegmentList out = {{.data = sum.data(), .run_elems = 1000}};
  EXPECT_EQ(SumOf({columns, packed}, out), 1);
  EXPECT_EQ(SumOf({packed, packed}, out), 1);
  // Also in place.
  EXPECT_EQ(SumOf({columns, packed}, columns), 1);
  for (size_t i = 0; i < 1000; ++i) {
    const size_t at = i / 10 * 30 + 10 + i % 10;
    EXPECT_EQ(gradient[at], static_cast<int32_t>(at + 1 + 5000 + i));
  }
}

SegmentList SomeList(std::mt19937& random, std::vector<int32_t>& memory,
                     int64_t elems) {
  SegmentList list;
  int32_t* next = memory.data();
  while (elems > 0) {
    next += random() % 3;
    const auto run = std::min<int64_t>(elems, 1 + random() % 6);
    Segment s{.data = next,
              .run_elems = run,
              .runs = std::min<int64_t>(elems / run, 1 + random() % 4)};
    s.stride_elems = s.run_elems + static_cast<int64_t>(random() % 3);
    next += s.runs * s.stride_elems + s.run_elems;
    elems -= s.elems();
    list.push_back(s);
  }
  return list;
}

TEST(ReduceSegmentsTest, AddsListsHoweverTheyAreCut) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto elems = static_cast<int64_t>(random() % 60);
    std::vector<std::vector<int32_t>> memory(4, std::vector<int32_t>(1000));
    std::vector<SegmentList> lists;
    for (std::vector<int32_t>& each : memory) {
      for (int32_t& value : each) value = static_cast<int32_t>(random() % 1000);
      lists.push_back(SomeList(random, each, elems));
    }
    const SegmentList out = lists.back();
    lists.pop_back();
    std::vector<int32_t> expected(static_cast<size_t>(elems));
    for (const SegmentList& list : lists) {
      const std::vector<int32_t> values = ElementsOf(list);
      for (size_t i = 0; i < values.size(); ++i) expected[i] += values[i];
    }
    SumOf(lists, out);
    ASSERT_EQ(ElementsOf(out), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace crosshatch
