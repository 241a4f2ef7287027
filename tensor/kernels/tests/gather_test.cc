// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;

Operand Indices(DType dtype, const std::vector<int64_t>& sizes, int64_t bound,
                LayoutKind layout) {
  Random random(7);
  Operand index(dtype, sizes, layout);
  Reals values;
  for (int64_t i = 0; i < index.numel(); ++i) {
    values.push_back(static_cast<Real>(random.Below(bound)));
  }
  index.Set(values);
  return index;
}

// Compares with the definition, element by element.
void Check(DType dtype, DType index_dtype, const std::vector<int64_t>& sizes,
           int dim, int64_t first, int64_t count, int64_t bound,
           LayoutKind index_layout, LayoutKind src_layout) {
  Random random(3);
  const Operand index = Indices(index_dtype, sizes, bound, index_layout);
  std::vector<int64_t> src_sizes = sizes;
  src_sizes[static_cast<size_t>(dim)] = count;
  Operand src(dtype, src_sizes, src_layout), out(dtype, sizes);
  src.Fill(random, 0, 50);
  GatherArgs args;
  args.shape = index.shape();
  args.at = {"gather", dim, first, count, bound};
  args.index = index.in();
  args.src = src.in();
  args.out = out.out();
  const std::string what = std::string("gather of ") + Name(dtype);
  kernel_test::RunAllWays(
      {&out}, [&](KernelContext& context) { Kernels().gather(args, context); },
      what);
  const Reals places = index.Read(), from = src.Read(), actual = out.Read();
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < sizes.size(); ++d) {
    inner *= sizes[d];
  }
  const int64_t length = sizes[static_cast<size_t>(dim)];
  for (int64_t i = 0; i < out.numel(); ++i) {
    const auto place =
        static_cast<int64_t>(places[static_cast<size_t>(i)]) - first;
    const int64_t outer = i / inner / length;
    const Real expected =
        place >= 0 && place < count
            ? from[static_cast<size_t>((outer * count + place) * inner +
                                       i % inner)]
            : 0;
    ASSERT_EQ(actual[static_cast<size_t>(i)], expected) << what << " at " << i;
  }
}

TEST(GatherTest, TakesWhatTheIndicesName) {
  for (DType dtype : kernel_test::kAllDTypes) {
    for (DType index : {DType::kInt32, DType::kInt64, DType::kUInt16}) {
      for (int dim : {0, 1, 2}) {
        Check(dtype, index, {3, 5, 7}, dim, 0, 6, 6, LayoutKind::kContiguous,
              LayoutKind::kContiguous);
      }
    }
  }
}

TEST(GatherTest, TakesEveryLayoutAndSize) {
  for (LayoutKind index :
       {LayoutKind::kContiguous, LayoutKind::kTransposed, LayoutKind::kPadded,
        LayoutKind::kBroadcastInner, LayoutKind::kBroadcastOuter}) {
    for (LayoutKind src : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                           LayoutKind::kPadded}) {
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{4}, std::vector<int64_t>{1, 1},
            std::vector<int64_t>{3, 1300}, std::vector<int64_t>{40, 2, 31},
            std::vector<int64_t>{0, 3}, std::vector<int64_t>{3, 0}}) {
        for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
          Check(DType::kFloat32, DType::kInt64, sizes, dim, 0, 11, 11, index,
                src);
        }
      }
    }
  }
}

TEST(GatherTest, GivesZerosForWhatIsElsewhere) {
  for (int64_t count : {0, 1, 4}) {
    Check(DType::kBFloat16, DType::kInt64, {5, 6}, 0, 3, count, 9,
          LayoutKind::kContiguous, LayoutKind::kContiguous);
    Check(DType::kFloat32, DType::kInt64, {5, 6}, 1, 3, count, 9,
          LayoutKind::kBroadcastOuter, LayoutKind::kPadded);
  }
}

TEST(GatherDeathTest, NamesAnIndexOutOfRange) {
  for (const Real wrong : {Real(-1), Real(5)}) {
    Operand index(DType::kInt64, {2}), src(DType::kFloat32, {5}),
        out(DType::kFloat32, {2});
    index.Set({0, wrong});
    GatherArgs args;
    args.shape = index.shape();
    args.at = {"index_select", 0, 0, 5, 5};
    args.index = index.in();
    args.src = src.in();
    args.out = out.out();
    EXPECT_DEATH(kernel_test::Run([&](KernelContext& context) {
                   Kernels().gather(args, context);
                 }),
                 "index_select: index (-1|5) is out of range: dim 0 has 5 "
                 "elements");
  }
}

}  // namespace
}  // namespace crosshatch
