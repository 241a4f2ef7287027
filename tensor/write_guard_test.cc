// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/write_guard.h"

#include <memory>
#include <optional>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(WriteGuardTest, LetsReadersEndBeforeTheFirstWrite) {
  const Tensor a = Full({4}, 1);
  const Tensor b = Full({4}, 2);
  const Tensor other = Full({4}, 3);
  int calls = 0;
  float seen = 0;
  std::optional<WriteGuard> guard;
  guard.emplace(std::vector<std::shared_ptr<Storage>>{a.storage(), b.storage()},
                [&] {
                  ++calls;
                  seen = b.data<float>()[2];
                });
  // Reads, and writes elsewhere.
  AddInPlace(other, Add(a, b));
  EXPECT_EQ(calls, 0);
  // A view writes to the memory of its base.
  FillInPlace(Slice(b, 0, 2, 3), 7);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(seen, 2);
  FillInPlace(a, 8);
  EXPECT_EQ(calls, 1);
  guard.reset();
  FillInPlace(b, 9);
  EXPECT_EQ(calls, 1);
}

TEST(WriteGuardTest, NotifiesEachOfSeveral) {
  const Tensor a = Full({4}, 1);
  int calls = 0;
  const WriteGuard first({a.storage()}, [&] { ++calls; });
  {
    const WriteGuard gone({a.storage()}, [&] { calls += 100; });
  }
  const WriteGuard second({a.storage()}, [&] { calls += 10; });
  FillInPlace(a, 2);
  EXPECT_EQ(calls, 11);
}

}  // namespace
}  // namespace crosshatch
