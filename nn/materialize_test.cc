// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/materialize.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kStddev = 0.5;
const Initializer& Normal() {
  static const auto* const normal = new Initializer(init::Normal(kStddev));
  return *normal;
}

std::unique_ptr<Parameter> Named(const std::string& name, const Shape& sizes,
                                 Initializer initializer) {
  auto parameter = std::make_unique<Parameter>(sizes, kFloat32, initializer);
  parameter->set_name(name);
  return parameter;
}

std::vector<float> MakeNormal(const std::string& name, const Shape& sizes,
                              uint64_t seed) {
  const auto parameter = Named(name, sizes, Normal());
  EXPECT_TRUE(Materialize({parameter.get()}, {.seed = seed}).ok());
  return parameter->data().ToVector<float>();
}

int64_t ParameterBytes() {
  return RankContext::Current().allocator().stats().current[static_cast<int>(
      MemoryClass::kParameter)];
}

TEST(MaterializeTest, FillsByInitializer) {
  const auto zeros = Named("zeros", {5}, {Initializer::Kind::kZeros});
  const auto ones = Named("ones", {2, 3}, {Initializer::Kind::kOnes});
  const auto none = Named("none", {0, 3}, Normal());
  const int64_t before = ParameterBytes();
  ASSERT_TRUE(Materialize({zeros.get(), ones.get(), none.get()}, {}).ok());
  EXPECT_EQ(ParameterBytes() - before, (5 + 6) * 4);
  EXPECT_THAT(zeros->data().ToVector<float>(), Each(0.0f));
  EXPECT_THAT(ones->data().ToVector<float>(), Each(1.0f));
  EXPECT_TRUE(none->data().ToVector<float>().empty());
}

TEST(MaterializeTest, SeedAndNameDecide) {
  const std::vector<float> values = MakeNormal("w", {8}, 7);
  EXPECT_EQ(MakeNormal("w", {8}, 7), values);
  EXPECT_NE(MakeNormal("w", {8}, 8), values);
  EXPECT_NE(MakeNormal("v", {8}, 7), values);
}

TEST(MaterializeTest, KeepsParametersThatHaveMemory) {
  const auto parameter = Named("w", {3}, {Initializer::Kind::kOnes});
  parameter->set_data(FromValues<float>(Shape{3}, {4, 5, 6}));
  ASSERT_TRUE(Materialize({parameter.get()}, {}).ok());
  EXPECT_EQ(parameter->data().ToVector<float>(), (std::vector<float>{4, 5, 6}));
}

TEST(MaterializeTest, LeasesASharedStorageOnce) {
  const auto storage = std::make_shared<Storage>(7 * 4, "group");
  const auto ones = Named("ones", {3}, {Initializer::Kind::kOnes});
  const auto normal = Named("w", {2, 2}, Normal());
  ones->set_data(MakeView(storage, 0, {3}, {1}, kFloat32));
  normal->set_data(MakeView(storage, 3, {2, 2}, {2, 1}, kFloat32));
  const int64_t before = ParameterBytes();
  ASSERT_TRUE(Materialize({ones.get(), normal.get()}, {.seed = 7}).ok());
  EXPECT_EQ(ParameterBytes() - before, 7 * 4);
  EXPECT_THAT(ones->data().ToVector<float>(), Each(1.0f));
  EXPECT_EQ(normal->data().ToVector<float>(), MakeNormal("w", {2, 2}, 7));
}

TEST(MaterializeTest, RefusesPartialSums) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto good = Named("good", {2}, Normal());
    const auto bad = Named("bad", {2}, Normal());
    bad->set_data(MakeDTensor(
        Deferred({2}, kFloat32, "bad"), mesh,
        Layout::Replicated(mesh.layout(), 1).WithPartial(0, ReduceOp::kSum),
        Shape{2}));
    const absl::Status made = Materialize({good.get(), bad.get()}, {});
    CH_EXPECT_TRUE(absl::IsFailedPrecondition(made)) << made;
    CH_EXPECT_THAT(std::string(made.message()), HasSubstr("parameter bad"));
    CH_EXPECT_FALSE(good->data().storage()->attached());
    return absl::OkStatus();
  });
}

TEST(MaterializeTest, NamesTheFirstParameterThatDiffersBetweenRanks) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto make = [&](const std::string& name, int64_t size) {
      auto parameter = Named(name, {size}, init::Uniform(-1, 1));
      parameter->set_data(MakeDTensor(Deferred({size}, kFloat32, name), mesh,
                                      Layout::Replicated(mesh.layout(), 1),
                                      Shape{size}));
      return parameter;
    };
    const int64_t here = *mesh.index(0) == 0 ? 2 : 3;
    const auto equal = make("equal", 2);
    const auto differs = make("differs", here);
    const auto later = make("later", here);
    const absl::Status made =
        Materialize({equal.get(), differs.get(), later.get()}, {});
    CH_EXPECT_TRUE(absl::IsInvalidArgument(made)) << made;
    CH_EXPECT_THAT(
        std::string(made.message()),
        testing::AllOf(HasSubstr("shard them differently: differs [2] {} "
                                 "uniform[-1, 1) on rank 0, differs [3] "),
                       testing::Not(HasSubstr("later"))));
    return absl::OkStatus();
  });
}

TEST(MaterializeTest, ADryRunAccountsTheSame) {
  const absl::Status status = RunFake({}, [](World&) {
    const auto parameter = Named("w", {10, 10}, Normal());
    EXPECT_EQ(ParameterBytes(), 0);
    CH_RETURN_IF_ERROR(Materialize({parameter.get()}, {}));
    EXPECT_EQ(ParameterBytes(), 400);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch::nn
