// SPDX-License-Identifier: Apache-2.0

/// \file
/// Errors of FSDP beneath tensor parallelism: parameters that are written
/// between a forward and its backward, ranks that use different parameters, and
/// late parameters.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/writers_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/full_state.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::vector<MeshAxis> kAxes = {{"fsdp", 2}, {"tp", 2}};

// Restores saved weights, as a program may.
absl::Status Restore(World& world, nn::Module& model) {
  nn::ModuleState state(model);
  CH_ASSIGN_OR_RETURN(const nn::StateDict now, state.State());
  nn::StateDict kept;
  CH_RETURN_IF_ERROR(nn::VisitFullState(
      world, now, nn::StateHolder::kEveryRank,
      [&](const std::string& name, const nn::StateValue& value) {
        return kept.Add(name, value);
      }));
  return nn::RestoreFullState(world, state, kept);
}

std::vector<Writer> WritersOnTwoAxes() {
  std::vector<Writer> writers = Writers();
  writers.push_back({"Restore", Restore});
  return writers;
}

// Splits `up` by columns and `down` by rows, but not `head`.
absl::Status ParallelizeAndShard(TestModel& model, const DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice("fsdp"));
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      model, tp,
      {{"blocks.*.up", tp::ColwiseParallel()},
       {"blocks.*.down", tp::RowwiseParallel({.use_local_output = true})}}));
  FullyShardOptions options;
  options.extension = DTensorExtensions::Create();
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, data, options));
  }
  return FullyShard(model, data, options);
}

class StaleOnTwoAxesDeathTest : public ::testing::TestWithParam<Writer> {};

// l1 = f(x), l2 = f(x), Backward(l1), a write, Backward(l2).
TEST_P(StaleOnTwoAxesDeathTest, StopsBeforeItMixesOldAndNew) {
  const auto train = [] {
    OnMesh(kAxes, [](const DeviceMesh& mesh) -> absl::Status {
      TestModel model(1, 5, 6, 3);
      model.FillWithIntegers();
      CH_RETURN_IF_ERROR(ParallelizeAndShard(model, mesh));
      const auto loss = [&](int64_t salt) {
        Tensor x = BatchOf(0, 1, salt);
        x.set_requires_grad(true);
        return Sum(model.Forward(x));
      };
      const Tensor first = loss(1);
      const Tensor second = loss(2);
      CH_RETURN_IF_ERROR(Backward(first));
      CH_RETURN_IF_ERROR(GetParam().write(mesh.world(), model));
      return Backward(second);
    });
  };
  EXPECT_DEATH(train(),
               "parameter [a-z0-9.]*weight, .* was changed in place.*run the "
               "backward of a forward before");
}

INSTANTIATE_TEST_SUITE_P(All, StaleOnTwoAxesDeathTest,
                         ::testing::ValuesIn(WritersOnTwoAxes()),
                         [](const auto& info) { return info.param.name; });

// Computes x + second(x) + first(x). A rank may skip `second`.
class Branches final : public nn::Module {
 public:
  explicit Branches(bool uses_second) : uses_second_(uses_second) {
    RegisterModule("first", first_);
    RegisterModule("second", second_);
    int64_t salt = 0;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
  }
  TestBlock& first() { return first_; }
  TestBlock& second() { return second_; }
  void AddThird() {
    third_.weight()->set_data(SmallIntegers({5, 5}, 9));
    RegisterModule("third", third_);
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = first_.Forward(inputs[0]);
    if (uses_second_) x = second_.Forward(x);
    return {x};
  }

 private:
  const bool uses_second_;
  TestBlock first_{5, 6};
  TestBlock second_{5, 6};
  nn::Linear third_{5, 5};
};

absl::Status Distribute(const DeviceMesh& mesh, bool in_one_group,
                        Branches& model) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice("fsdp"));
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      model, tp,
      {{"*.up", tp::ColwiseParallel()},
       {"*.down", tp::RowwiseParallel({.use_local_output = true})}}));
  FullyShardOptions options;
  options.extension = DTensorExtensions::Create();
  if (!in_one_group) {
    CH_RETURN_IF_ERROR(FullyShard(model.first(), data, options));
    CH_RETURN_IF_ERROR(FullyShard(model.second(), data, options));
  }
  return FullyShard(model, data, options);
}

absl::Status TrainForgetfully(const DeviceMesh& mesh, bool in_one_group,
                              Branches& model) {
  CH_RETURN_IF_ERROR(Distribute(mesh, in_one_group, model));
  Tensor x = BatchOf(0, 1, 3);
  x.set_requires_grad(true);
  CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(x))));
  return mesh.world().context().Synchronize();
}

TEST(UnusedOnTwoAxesTest, IsAnErrorNamingParameterAndRanksOnEveryRank) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  for (const bool in_one_group : {true, false}) {
    std::vector<absl::Status> statuses(4);
    const absl::Status status =
        StatusOfRanks(4, [&](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                              InitDeviceMesh(world, kAxes));
          Branches model(/*uses_second=*/world.rank() < 2);
          return statuses[static_cast<size_t>(world.rank())] =
                     TrainForgetfully(mesh, in_one_group, model);
        });
    EXPECT_FALSE(status.ok());
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(
          absl::StrCat("rank ", rank, ", in one group: ", in_one_group));
      const std::string message(statuses[static_cast<size_t>(rank)].message());
      EXPECT_THAT(message, HasSubstr("second.up.weight"));
      EXPECT_THAT(message, HasSubstr("Settings::reduce_unused_params"));
      // Both groups along fsdp fail, and either error may be reported.
      EXPECT_THAT(message, AnyOf(HasSubstr("rank 2 issued"),
                                 HasSubstr("rank 3 issued")));
    }
  }
}

TEST(LateOnTwoAxesDeathTest, NamesAParameterThatCameTooLate) {
  const auto train = [] {
    OnMesh(kAxes, [](const DeviceMesh& mesh) -> absl::Status {
      Branches model(/*uses_second=*/true);
      CH_RETURN_IF_ERROR(Distribute(mesh, /*in_one_group=*/false, model));
      model.AddThird();
      return Backward(Sum(model.Forward(BatchOf(0, 1, 3))));
    });
  };
  EXPECT_DEATH(train(),
               "parameter third.weight was registered after FullyShard");
}

}  // namespace
}  // namespace crosshatch::fsdp
