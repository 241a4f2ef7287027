// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/async_copies.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "crosshatch/emulation/cuda_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::emulation {
namespace {

constexpr std::byte kOne{1};
constexpr std::byte kTwo{2};
constexpr std::byte kUnset{0xFF};

AsyncCopies::Data All(std::byte value) {
  AsyncCopies::Data data;
  data.fill(value);
  return data;
}

TEST(AsyncCopiesTest, DestinationsHaveNoDataBeforeTheWait) {
  AsyncCopies copies;
  AsyncCopies::Data to = All(kTwo);
  copies.Start(to.data(), All(kOne));
  EXPECT_EQ(to, All(kUnset));
  copies.Commit();
  EXPECT_EQ(to, All(kUnset));
  copies.Wait(0);
  EXPECT_EQ(to, All(kOne));
  EXPECT_FALSE(copies.Drop());
}

TEST(AsyncCopiesTest, WaitsForAllButTheLatestGroups) {
  AsyncCopies copies;
  std::array<AsyncCopies::Data, 4> to = {};
  for (size_t i = 0; i < 3; ++i) {
    copies.Start(to[i].data(), All(kOne));
    copies.Commit();
  }
  copies.Start(to[3].data(), All(kOne));
  copies.Wait(3);
  EXPECT_THAT(to, testing::Each(All(kUnset)));
  copies.Wait(1);
  EXPECT_THAT(
      to, testing::ElementsAre(All(kOne), All(kOne), All(kUnset), All(kUnset)));
  // A copy of no group is not waited for.
  copies.Wait(0);
  EXPECT_EQ(to[2], All(kOne));
  EXPECT_EQ(to[3], All(kUnset));
  EXPECT_TRUE(copies.Drop());
}

TEST(AsyncCopiesTest, GroupsMayBeEmpty) {
  AsyncCopies copies;
  AsyncCopies::Data to = {};
  copies.Start(to.data(), All(kOne));
  copies.Commit();
  copies.Commit();
  copies.Wait(1);
  EXPECT_EQ(to, All(kOne));
}

struct alignas(16) Rows {
  std::array<std::byte, 16> values[32];
};

// Lane l reads what lane 31 - l copied.
void Reversed(const Rows& in, Rows& out, bool with_wait, bool with_barrier) {
  CH_SHARED(rows, Rows);
  const unsigned i = threadIdx.x;
  StartCopy(&rows.values[i], &in.values[i], 5);
  async_copies->Commit();
  if (with_wait) WaitForCopies(0, {__FILE__, __LINE__});
  if (with_barrier) __syncwarp();
  out.values[i] = rows.values[31 - i];
  if (!with_wait) WaitForCopies(0, {__FILE__, __LINE__});
}

TEST(AsyncCopiesTest, AKernelNeedsTheWaitAndTheBarrier) {
  Rows in;
  std::fill(std::begin(in.values), std::end(in.values), All(kOne));
  AsyncCopies::Data copied = {};
  std::fill(copied.begin(), copied.begin() + 5, kOne);
  for (const bool with_wait : {false, true}) {
    for (const bool with_barrier : {false, true}) {
      Rows out;
      RunGrid({.kernel = "reversed", .block = {32, 1, 1}},
              [&] { Reversed(in, out, with_wait, with_barrier); });
      EXPECT_EQ(std::count(std::begin(out.values), std::end(out.values),
                           copied) == 32,
                with_wait && with_barrier);
    }
  }
}

TEST(AsyncCopiesDeathTest, CopiesEndBeforeTheirThread) {
  EXPECT_DEATH(RunGrid({.kernel = "one"},
                       [] {
                         CH_SHARED(row, Rows);
                         const Rows in = {};
                         StartCopy(&row, &in, 16);
                         async_copies->Commit();
                       }),
               "kernel one, block \\(0, 0, 0\\), thread \\(0, 0, 0\\) ends "
               "without a wait for its asynchronous copies");
}

TEST(AsyncCopiesDeathTest, AddressesAreMultiplesOf16) {
  EXPECT_DEATH(RunGrid({.kernel = "one"},
                       [] {
                         CH_SHARED(row, Rows);
                         const Rows in = {};
                         StartCopy(&row, &in.values[0][8], 8);
                       }),
               "which is not aligned");
}

}  // namespace
}  // namespace crosshatch::emulation
