// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/host_access.h"

#include <cstdint>

#include "absl/status/status.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The device that the tests of this binary run on.
const DeviceBackend& Backend() { return RankContext::Current().backend(); }

TEST(HostAccessTest, ReadsAndWritesWhereverMemoryIs) {
  for (const uint64_t seed : {0, 1}) {
    RankContext rank({.backend = &Backend(), .adversarial_seed = seed});
    const RankContextScope scope(&rank);
    const Tensor x = FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(x.device(), Backend().device());
    EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(Transpose(x, 0, 1).ToVector<float>(),
                ElementsAre(1, 4, 2, 5, 3, 6));
    EXPECT_THAT(Slice(x, 1, 1, 3).ToVector<float>(), ElementsAre(2, 3, 5, 6));
    EXPECT_THAT(ToDType(x, kBFloat16).ToVector<float>(),
                ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(Zeros({0, 3}).ToVector<float>(), IsEmpty());
    // From the last element to the first.
    const Tensor back = MakeView(x.storage(), 5, {6}, {-1}, kFloat32);
    EXPECT_THAT(back.ToVector<float>(), ElementsAre(6, 5, 4, 3, 2, 1));
    WriteFromHost(Select(x, 0, 1), [](void* to) {
      for (int i = 0; i < 3; ++i) static_cast<float*>(to)[i] = 10.f * i;
    });
    EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3, 0, 10, 20));
  }
}

TEST(HostAccessTest, APoisonedRankWritesNothing) {
  RankContext rank({.backend = &Backend()});
  const RankContextScope scope(&rank);
  const Tensor x = Full({2}, 1);
  rank.Poison(absl::AbortedError("peer"));
  bool written = false;
  WriteFromHost(x, [&](void*) { written = true; });
  EXPECT_FALSE(written);
}

TEST(HostAccessTest, OffloadedTensorsAreInHostMemory) {
  RankContext rank({.backend = &Backend()});
  const RankContextScope scope(&rank);
  const Tensor x = FromValues<float>({3}, {1, 2, 3});
  const HostMemoryScope on_host;
  const Tensor y = Empty({3});
  EXPECT_EQ(y.device(), Device::Cpu());
  CopyInPlace(y, x);
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(1, 2, 3));
  EXPECT_EQ(y.data<float>()[2], 3);
}

}  // namespace
}  // namespace crosshatch
