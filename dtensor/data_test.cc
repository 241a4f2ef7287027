// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {

namespace {

// Every layout from every rank: the values are the source's, and a rank
// receives only its part.
TEST(DistributeTensorFrom, DistributesTheSourcesValues) {
  OnMeshes({{1}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    const int rank = mesh.world().rank();
    int round = 0;
    for (const Shape& sizes :
         {Shape{}, Shape{5}, Shape{0, 2}, Shape{3, 4}, Shape{1, 2, 5}}) {
      const Tensor dense = Numbers(sizes, 1);
      for (const Layout& layout :
           AllLayouts(mesh.layout(), static_cast<int>(sizes.size()), true)) {
        const int source = round++ % mesh.size();
        const int64_t before = BytesReceived(mesh.world());
        const Tensor t = DistributeTensorFrom(
            source,
            rank == source ? dense : Deferred(sizes, kFloat32, "elsewhere"),
            mesh, layout);
        const int64_t received = BytesReceived(mesh.world()) - before;
        const int64_t part = LocalTensor(t).numel() * 4;
        CH_EXPECT_EQ(received, rank == source ? 0 : part) << layout.ToString();
        CH_EXPECT_EQ(LayoutOf(t), layout);
        CH_EXPECT_EQ(Differs(t, dense), "")
            << ToString(sizes) << " " << layout.ToString();
      }
    }
  });
}

TEST(DistributeTensorFrom, TakesPlacements) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({3, 5}, 1);
    const Tensor t = DistributeTensorFrom(1, dense, mesh, {Shard(1)});
    CH_EXPECT_EQ(LayoutOf(t), Whole(mesh, 2).WithShard(0, 1));
    CH_EXPECT_EQ(Differs(t, dense), "");
  });
}

TEST(DistributeTensorFrom, SendsStridedSourcesAndKeepsLeaves) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout rows = Rows(mesh);
    const Tensor dense = Numbers({3, 5}, 1);
    const Tensor turned = Transpose(Numbers({3, 5}, 1), 0, 1);
    CH_EXPECT_EQ(Differs(DistributeTensorFrom(1, turned, mesh, rows),
                         Transpose(dense, 0, 1)),
                 "");
    const Tensor repeated = Expand(Numbers({1, 5}, 1), {3, 5});
    CH_EXPECT_EQ(
        Differs(DistributeTensorFrom(0, repeated, mesh, rows), repeated), "");
    Tensor leaf = Numbers({3, 5}, 2);
    leaf.set_requires_grad(true);
    const Tensor spread = DistributeTensorFrom(0, leaf, mesh, rows);
    CH_EXPECT_TRUE(spread.requires_grad());
    CH_EXPECT_TRUE(spread.is_leaf());
  });
}

TEST(DistributeTensorFrom, DifferentSizesAreAnErrorOnEveryRank) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  std::vector<std::string> found(2);
  const absl::Status status = StatusOfRanks(2, [&](World& world) {
    const auto mesh = InitDeviceMesh(world, {{"a", 2}});
    DistributeTensorFrom(0, Zeros({world.rank() == 0 ? 4 : 6}), *mesh,
                         Rows(*mesh, 1));
    const absl::Status error = world.context().Synchronize();
    found[world.rank()] = std::string(error.message());
    return error;
  });
  EXPECT_FALSE(status.ok());
  EXPECT_NE(found[0].find("DistributeTensorFrom"), std::string::npos)
      << found[0];
  EXPECT_NE(found[1].find("DistributeTensorFrom"), std::string::npos)
      << found[1];
}

TEST(RowsOf, AreThoseOfATensorThatIsSplitByRows) {
  OnMesh({{"a", 2}, {"b", 3}}, [](const DeviceMesh& mesh) -> absl::Status {
    const std::vector<std::vector<std::string>> slices = {
        {"a"}, {"b"}, {"a", "b"}, {"b", "a"}};
    for (const std::vector<std::string>& axes : slices) {
      CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice(axes));
      for (const int64_t rows : {0, 1, 2, 5, 6, 7, 13, 60}) {
        Layout layout = Layout::Replicated(data.layout(), 1);
        for (int axis = 0; axis < data.ndim(); ++axis) {
          layout = layout.WithShard(axis, 0);
        }
        CH_EXPECT_EQ(RowsOf(data, rows),
                     LocalBoxOf(DistributeTensor(Zeros({rows}), data, layout))
                         .interval(0));
      }
    }
    return absl::OkStatus();
  });
}

TEST(RowsOf, OfFewRowsARankMayHaveNone) {
  OnMesh({{"data", 4}}, [](const DeviceMesh& mesh) {
    const int rank = mesh.world().rank();
    CH_EXPECT_EQ(RowsOf(mesh, 3).size(), rank < 3 ? 1 : 0);
    CH_EXPECT_EQ(RowsOf(mesh, 8), (Interval{rank * 2, rank * 2 + 2}));
  });
}

TEST(RowsOfDeathTest, NamesARankThatIsNotOnTheMesh) {
  const auto run = [] {
    RunRanks(2, [](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"data", 1}}));
      RowsOf(mesh, 3);
      return absl::OkStatus();
    });
  };
  EXPECT_DEATH(run(), "rank 1 is not on mesh\\(data=1\\)");
}

template <typename T>
void ExpectValue(const absl::StatusOr<T>& value, T expected) {
  CH_EXPECT_OK(value);
  if (value.ok()) CH_EXPECT_EQ(*value, expected);
}

TEST(Item, GivesTheValueOfEveryLayoutToEveryRank) {
  OnMeshes({{1}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    for (const Shape& sizes : {Shape{}, Shape{1}, Shape{1, 1}}) {
      const Tensor dense = Full(sizes, -2.5);
      for (const Layout& layout :
           AllLayouts(mesh.layout(), static_cast<int>(sizes.size()), true)) {
        Tensor t = Spread(dense, mesh, layout);
        t.set_requires_grad(true);
        ExpectValue(Item(t), -2.5);
        ExpectValue(Item<float>(t), -2.5f);
      }
    }
  });
}

TEST(Item, PerformsPendingReductions) {
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const double mine = *mesh.index(0) + 2;  // 2, 3, 4
    const auto of = [&](ReduceOp op) {
      const Layout layout = Whole(mesh, 0).WithPartial(0, op);
      return Item(MakeDTensor(Full({}, mine), mesh, layout, {}));
    };
    ExpectValue(of(ReduceOp::kSum), 9.0);
    ExpectValue(of(ReduceOp::kAvg), 3.0);
    ExpectValue(of(ReduceOp::kProduct), 24.0);
    ExpectValue(of(ReduceOp::kMax), 4.0);
    ExpectValue(of(ReduceOp::kMin), 2.0);
  });
}

TEST(Item, TakesPlainTensorsAndKeepsIntegersExact) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    ExpectValue(Item(Full({1, 1}, 7)), 7.0);
    ExpectValue(Item(Full({}, 1, kBool)), 1.0);
    const int64_t large = (int64_t{1} << 53) + 1;
    const Tensor count = FromValues<int64_t>({1}, std::vector<int64_t>{large});
    ExpectValue(Item<int64_t>(count), large);
    ExpectValue(Item<int64_t>(DistributeTensor(count, mesh, Rows(mesh, 1))),
                large);
  });
}

TEST(Item, GivesTheErrorOfAPoisonedRank) {
  StatusOfRanks(2, [](World& world) -> absl::Status {
    world.context().Poison(absl::UnavailableError("a peer is lost"));
    for (const absl::Status& status :
         {Item(Full({}, 7)).status(), Item<float>(Full({}, 7)).status()}) {
      CH_EXPECT_TRUE(absl::StrContains(status.message(), "a peer is lost"))
          << status;
    }
    return absl::OkStatus();
  }).IgnoreError();
}

TEST(Item, IsAnErrorInADryRun) {
  const absl::Status status =
      RunFake({.world_size = 2, .rank = 1}, [](World& world) {
        const auto mesh = InitDeviceMesh(world, {{"a", 2}});
        EXPECT_TRUE(mesh.ok()) << mesh.status();
        const Tensor x = DistributeTensor(Zeros({1}), *mesh, Rows(*mesh, 1));
        EXPECT_EQ(Item(x).status().code(),
                  absl::StatusCode::kFailedPrecondition);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ItemDeathTest, ChecksTheNumberOfElementsAndTheDType) {
  ExpectDeathOn({2}, "Item of f32\\[2\\]\\|\\[S\\(0\\)\\].*has not one element",
                [](const DeviceMesh& mesh) {
                  // One element on each rank.
                  Item(Spread(Ones({2}), mesh, Rows(mesh, 1))).IgnoreError();
                });
  ExpectDeathOn({2}, "Item of f32\\[0\\].*has not one element",
                [](const DeviceMesh&) { Item(Ones({0})).IgnoreError(); });
  ExpectDeathOn({2}, "Item<f64> of f32\\[\\]", [](const DeviceMesh&) {
    Item<double>(Ones({})).IgnoreError();
  });
}

}  // namespace

}  // namespace crosshatch
