// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/dispatch/dispatch_cache.h"
#include "crosshatch/dtensor/dispatch/register_op_rule.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

// Plans are cached by value. An equal layout created again hits the cache;
// another number in the op, size, dtype or layout misses it.
TEST(Dispatch, KeepsPlansByValue) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    NoGrad no_grad;
    const auto rows = [&mesh] { return Rows(mesh, 1); };
    const auto x = [&](const Layout& layout, int64_t n = 5,
                       DType dtype = kFloat32) {
      return Spread(Numbers({n}, 1, dtype), mesh, layout);
    };
    auto& plans = DispatchCache::Current().plans();
    plans.clear();
    const auto expect_new = [&](size_t more, const char* what,
                                const std::function<void()>& call) {
      const size_t before = plans.size();
      call();
      CH_EXPECT_EQ(plans.size(), before + more) << what;
    };
    const Tensor a = x(rows());
    expect_new(1, "first", [&] { Add(a, a, 2); });
    expect_new(0, "again", [&] { Add(a, a, 2); });
    const Tensor b = x(rows());
    expect_new(0, "an equal layout", [&] { Add(b, a, 2); });
    expect_new(1, "another alpha", [&] { Add(a, a, 3); });
    const Tensor whole = x(Whole(mesh, 1));
    expect_new(1, "another layout", [&] { Add(a, whole, 2); });
    const Tensor longer = x(rows(), 6);
    expect_new(1, "another size", [&] { Add(longer, longer, 2); });
    const Tensor wide = x(rows(), 5, kFloat64);
    expect_new(1, "another dtype", [&] { Add(wide, wide, 2); });
    expect_new(1, "another op", [&] { Mul(a, a); });
  });
}

TEST(DispatchDeathTest, RefusesOperandsOnTwoMeshes) {
  ExpectDeathOn(
      {2, 2},
      "add\\(.*\\): input 1 is on mesh\\(b=2.*, others are on mesh\\(a=2",
      [](const DeviceMesh& mesh) {
        const auto a = mesh.Slice("a");
        const auto b = mesh.Slice("b");
        Add(Replicated(Ones({4}), *a), Replicated(Ones({4}), *b));
      });
}

class Twice final : public Op {
 public:
  static constexpr OpInfo kInfo = {"twice"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override {
    return {Mul(inputs[0], 2)};
  }
};

TEST(RegisterOpRule, GivesAUsersOpARule) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    RegisterOpRule(Twice::kInfo, [](const RuleCall& call) {
      return SolveFactors(call,
                          PointwiseFactors(call, Linearity::kMultilinear));
    });
    const Tensor dense = Numbers({5}, 1);
    for (const Layout& layout : AllLayouts(mesh.layout(), 1, true)) {
      const Tensor y = Apply1(Twice(), {Spread(dense, mesh, layout)});
      CH_EXPECT_EQ(LayoutOf(y), layout);
      CH_EXPECT_EQ(Differs(y, Mul(dense, 2)), "");
    }
  });
}

TEST(RegisterOpRule, AProgramMayRunDistributedOpsThatEmptyTheCache) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const auto kept = std::make_shared<int>();
    RegisterOpRule(Twice::kInfo, [&kept](const RuleCall& call) {
      RuleResult result =
          SolveFactors(call, PointwiseFactors(call, Linearity::kMultilinear));
      result.program = [kept = kept](const Op&, TensorSpan locals,
                                     const DeviceMesh& on) {
        const std::weak_ptr<int> alive = kept;
        const Tensor whole = Replicated(Ones({2}), on);
        Add(whole, whole);
        CH_EXPECT_GT(alive.use_count(), 1)
            << "the program that runs was dropped";
        return TensorList{locals[0].Detach()};
      };
      return result;
    });
    const Tensor x = Spread(Ones({5}), mesh, Whole(mesh, 1));
    auto& plans = DispatchCache::Current().plans();
    for (int64_t i = 0; plans.size() + 1 < DTensorRuntime::kMaxPlans; ++i) {
      plans.emplace(absl::InlinedVector<int64_t, 16>{-1, i}, nullptr);
    }
    CH_EXPECT_EQ(Differs(Apply1(Twice(), {x}), Ones({5})), "");
    CH_EXPECT_LE(plans.size(), 2) << "the cache was not emptied";
    plans.clear();
  });
}

}  // namespace
}  // namespace crosshatch
