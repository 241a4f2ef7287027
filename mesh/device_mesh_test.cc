// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

TEST(DeviceMesh, GivesEveryRankItsCoordinateAndGroups) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  RunRanks(6, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 3}});
    CH_RETURN_IF_ERROR(mesh.status());
    CH_EXPECT_EQ(mesh->ToString(), "mesh(fsdp=2, tp=3)");
    const int rank = world.rank();
    CH_EXPECT_EQ(mesh->index(0), rank / 3);
    CH_EXPECT_EQ(mesh->index(1), rank % 3);
    auto tp = mesh->communicator("tp", "compute");
    CH_RETURN_IF_ERROR(tp.status());
    CH_EXPECT_EQ((*tp)->name(), "tp");
    CH_EXPECT_EQ((*tp)->rank(), rank % 3);
    const std::vector<int> row = {rank / 3 * 3, rank / 3 * 3 + 1,
                                  rank / 3 * 3 + 2};
    CH_EXPECT_EQ((*tp)->world_ranks(), row);
    const int both[] = {0, 1};
    auto all = mesh->communicator(both, "compute");
    CH_RETURN_IF_ERROR(all.status());
    CH_EXPECT_EQ((*all)->name(), "fsdp,tp");
    CH_EXPECT_EQ((*all)->size(), 6);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, SlicesShareTheCommunicatorsOfTheirRoot) {
  RunRanks(4, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}});
    auto tp = mesh->Slice("tp");
    CH_RETURN_IF_ERROR(tp.status());
    CH_EXPECT_EQ(*tp->communicator(0, "s"), *mesh->communicator(1, "s"));
    CH_EXPECT_NE(*tp->communicator(0, "s"), *tp->communicator(0, "t"));
    const std::vector<std::string> swapped = {"tp", "fsdp"};
    auto turned = mesh->Slice(swapped);
    CH_EXPECT_EQ(turned->ToString(), "mesh(tp=2, fsdp=2, ranks=[0,2,1,3])");
    auto fsdp = mesh->Slice("fsdp");
    const DeviceMesh parts[] = {*fsdp, *tp};
    auto joined = DeviceMesh::Concatenate(parts);
    CH_RETURN_IF_ERROR(joined.status());
    CH_EXPECT_EQ(*joined, *mesh);
    CH_EXPECT_EQ(tp->root(), *mesh);
    auto again = mesh->Slice("tp");
    CH_EXPECT_EQ(*again, *tp);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, FlattensAndUnflattens) {
  RunRanks(4, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"world", 4}});
    const MeshAxis axes[] = {{"a", 2}, {"b", 2}};
    auto split = mesh->Unflatten("world", axes);
    CH_RETURN_IF_ERROR(split.status());
    CH_EXPECT_EQ(split->ToString(), "mesh(a=2, b=2)");
    const std::vector<std::string> names = {"a", "b"};
    auto flat = split->Flatten(names, "ab");
    CH_RETURN_IF_ERROR(flat.status());
    auto comm = flat->communicator("ab", "s");
    CH_RETURN_IF_ERROR(comm.status());
    CH_EXPECT_EQ((*comm)->size(), 4);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, FlattenedAxesShareOneCommunicatorByName) {
  RunRanks(4, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"a", 2}, {"b", 2}});
    const std::vector<std::string> names = {"a", "b"};
    auto flat = mesh->Flatten(names, "ab");
    auto again = mesh->Flatten(names, "ab");
    auto renamed = mesh->Flatten(names, "dp");
    CH_EXPECT_EQ(*flat, *again);
    CH_EXPECT_NE(*flat, *renamed);
    CH_EXPECT_EQ(flat->root(), *mesh);
    CH_EXPECT_EQ(renamed->root(), *mesh);
    auto slice = flat->Slice("ab");
    CH_EXPECT_EQ(*flat->communicator("ab", "s"),
                 *again->communicator("ab", "s"));
    CH_EXPECT_EQ(*flat->communicator("ab", "s"),
                 *slice->communicator("ab", "s"));
    CH_EXPECT_EQ((*renamed->communicator("dp", "s"))->name(), "dp");
    CH_EXPECT_EQ(mesh->communicators().size(), 2);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, MeshesOfOneWorldShareItsCommunicators) {
  RunRanks(2, [](World& world) -> absl::Status {
    auto one = InitDeviceMesh(world, {{"dp", 2}});
    auto two = InitDeviceMesh(world, {{"dp", 2}});
    CH_EXPECT_EQ(*one, *two);
    CH_EXPECT_EQ(absl::HashOf(*one), absl::HashOf(*two));
    CH_EXPECT_EQ(*one->communicator("dp", "s"), *two->communicator("dp", "s"));
    auto other = InitDeviceMesh(world, {{"dp", 2}}, {1, 0});
    CH_EXPECT_NE(*one, *other);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, IsMadeOverCommunicatorsThatExist) {
  RunRanks(6, [](World& world) -> absl::Status {
    // Four of six ranks: 1, 4 / 5, 2.
    const std::vector<int> ranks = {1, 4, 5, 2};
    const MeshLayout layout =
        *MeshLayout::Create({{"dp", 2}, {"tp", 2}}, ranks);
    const int rank = world.rank();
    if (!layout.Contains(rank)) return absl::OkStatus();
    const std::vector<std::shared_ptr<Communicator>> given = {
        *world.Group("mine", layout.GroupRanks({0}, rank), "s"),
        *world.Group("other", layout.GroupRanks({1}, rank), "s")};
    auto mesh = DeviceMeshFromCommunicators(world, layout, given, "s");
    CH_RETURN_IF_ERROR(mesh.status());
    CH_EXPECT_EQ(mesh->layout(), layout);
    CH_EXPECT_TRUE(mesh->coordinate().has_value());
    CH_EXPECT_EQ(*mesh->communicator("dp", "s"), given[0].get());
    CH_EXPECT_EQ(*mesh->Slice("tp")->communicator(0, "s"), given[1].get());
    CH_EXPECT_NE(*mesh->communicator("dp", "t"), given[0].get());
    auto row = DeviceMeshFromCommunicator(world, "tp", given[1], "s");
    CH_RETURN_IF_ERROR(row.status());
    const std::vector<int> members = layout.GroupRanks({1}, rank);
    CH_EXPECT_EQ(std::vector<int>(row->layout().ranks().begin(),
                                  row->layout().ranks().end()),
                 members);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, CommunicatorsThatDoNotFitAreAnErrorOnEveryRank) {
  RunRanks(4, [](World& world) -> absl::Status {
    const int rank = world.rank();
    const MeshLayout layout = *MeshLayout::Create({{"dp", 2}, {"tp", 2}});
    const std::vector<std::shared_ptr<Communicator>> given = {
        *world.Group("dp", layout.GroupRanks({0}, rank), "s"),
        *world.Group("tp", layout.GroupRanks({1}, rank), "s")};
    // Only rank 3 has another layout. It shares no axis with rank 0.
    auto mesh = DeviceMeshFromCommunicators(
        world,
        rank == 3 ? MeshLayout::Create({{"dp", 2}, {"pp", 2}})
                  : absl::StatusOr<MeshLayout>(layout),
        given, "s");
    auto turned = DeviceMeshFromCommunicators(
        world, MeshLayout::Create({{"dp", 2}, {"tp", 2}}, {0, 2, 1, 3}), given,
        "s");
    auto few = DeviceMeshFromCommunicators(
        world, layout, absl::MakeConstSpan(given).subspan(0, 1), "s");
    CH_EXPECT_FALSE(turned.ok());
    CH_EXPECT_FALSE(few.ok());
    CH_EXPECT_THAT(std::string(turned.status().message()),
                   HasSubstr("but its communicator is"));
    CH_EXPECT_THAT(std::string(few.status().message()),
                   HasSubstr("2 communicators, got 1"));
    CH_EXPECT_THAT(std::string(mesh.status().message()),
                   HasSubstr("mesh(dp=2, pp=2)"));
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, AbortFailsItsGroups) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  std::vector<std::string> found(2);
  const absl::Status status =
      StatusOfRanks(2, [&](World& world) -> absl::Status {
        auto mesh = InitDeviceMesh(world, {{"dp", 2}});
        CH_ASSIGN_OR_RETURN(Communicator * group, mesh->communicator(0, "s"));
        if (world.rank() == 0) {
          mesh->Abort(absl::CancelledError("enough"));
          return absl::OkStatus();
        }
        found[1] = std::string(group->Exchange("", "wait").status().message());
        return absl::OkStatus();
      });
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(found[1], HasSubstr("enough"));
}

TEST(DeviceMesh, AbortBeforeTheFirstGroupFailsTheJob) {
  const absl::Status status =
      StatusOfRanks(2, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"dp", 2}}));
        if (world.rank() == 0) {
          mesh.Abort(absl::CancelledError("enough"));
          return absl::OkStatus();
        }
        CH_ASSIGN_OR_RETURN(Communicator * group, mesh.communicator(0, "s"));
        return group->Exchange("", "wait").status();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(DeviceMesh, IsThatOfAnyRankOfADryRun) {
  const absl::Status status =
      RunFake({.world_size = 4096, .rank = 1234}, [](World& world) {
        auto mesh = InitDeviceMesh(
            world, {{"pp", 8}, {"dp", 16}, {"cp", 4}, {"tp", 8}});
        EXPECT_TRUE(mesh.ok()) << mesh.status();
        EXPECT_EQ(*mesh->coordinate(), (MeshCoordinate{2, 6, 2, 2}));
        const std::vector<std::string> names = {"dp", "cp"};
        EXPECT_EQ(
            (*mesh->Flatten(names, "fsdp")->communicator("fsdp", "s"))->size(),
            64);
        EXPECT_EQ(mesh->Slice("tp")->layout().ranks()[0], 1232);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(DeviceMesh, LeavesOutRanks) {
  RunRanks(3, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"tp", 2}}, {2, 0});
    CH_RETURN_IF_ERROR(mesh.status());
    if (world.rank() == 1) {
      CH_EXPECT_FALSE(mesh->coordinate().has_value());
      CH_EXPECT_FALSE(mesh->index(0).has_value());
      CH_EXPECT_FALSE(mesh->Slice("tp").ok());
      // Derived meshes also know that this rank is not on the mesh.
      const std::string names[] = {"tp"};
      const auto flat = mesh->Flatten(names, "all");
      CH_RETURN_IF_ERROR(flat.status());
      CH_EXPECT_FALSE(flat->coordinate().has_value());
      const MeshAxis axes[] = {{"x", 1}, {"y", 2}};
      const auto split = mesh->Unflatten("tp", axes);
      CH_RETURN_IF_ERROR(split.status());
      CH_EXPECT_FALSE(split->coordinate().has_value());
      const DeviceMesh parts[] = {*mesh};
      const auto joined = DeviceMesh::Concatenate(parts);
      CH_RETURN_IF_ERROR(joined.status());
      CH_EXPECT_FALSE(joined->coordinate().has_value());
      auto comm = mesh->communicator(0, "s");
      CH_EXPECT_THAT(std::string(comm.status().message()),
                     HasSubstr("rank 1 is not on mesh(tp=2"));
      return absl::OkStatus();
    }
    CH_EXPECT_EQ(mesh->index(0), world.rank() == 2 ? 0 : 1);
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, DifferentDescriptionsAreAnErrorOnEveryRank) {
  RunRanks(4, [](World& world) -> absl::Status {
    auto mesh = world.rank() == 2 ? InitDeviceMesh(world, {{"tp", 4}})
                                  : InitDeviceMesh(world, {{"fsdp", 4}});
    CH_EXPECT_THAT(
        std::string(mesh.status().message()),
        HasSubstr("rank 0 gives mesh(fsdp=4), rank 2 gives mesh(tp=4)"));
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, AWrongMeshOnOneRankIsAnErrorOnEveryRank) {
  RunRanks(2, [](World& world) -> absl::Status {
    auto mesh = world.rank() == 0
                    ? InitDeviceMesh(world, {{"tp", 2}})
                    : InitDeviceMesh(world, {{"tp", 1}, {"tp", 2}});
    CH_EXPECT_THAT(
        std::string(mesh.status().message()),
        HasSubstr(world.rank() == 0 ? "rank 1 gives an error (" : "tp"));
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, OrderRootAndNumberOfRanksAreCompared) {
  RunRanks(4, [](World& world) -> absl::Status {
    const bool odd = world.rank() == 3;
    const std::vector<MeshAxis> axes = {{"a", 2}, {"b", 2}};
    const MeshLayout mesh = *MeshLayout::Create(axes);
    const std::vector<std::string> turn = {"b", "a"};
    // Equal except for its root.
    const MeshLayout turned = *mesh.Slice(turn, 0);
    const MeshLayout same =
        *MeshLayout::Create({{"b", 2}, {"a", 2}}, {0, 2, 1, 3});
    const absl::Status statuses[] = {
        InitDeviceMesh(
            world, axes,
            odd ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{0, 1, 2, 3})
            .status(),
        InitDeviceMesh(world, odd ? turned : same).status(),
        InitDeviceMesh(world, {{"a", odd ? 3 : 4}}).status(),
    };
    for (const absl::Status& status : statuses) {
      CH_EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    }
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, AMissingRankIsAnErrorNotAHang) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  std::vector<std::string> found(3);
  const absl::Status status = StatusOfRanks(3, [&](World& world) {
    if (world.rank() == 1) return absl::OkStatus();
    found[world.rank()] =
        std::string(InitDeviceMesh(world, {{"a", 3}}).status().message());
    return absl::OkStatus();
  });
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(found[0], HasSubstr("rank 1"));
  EXPECT_THAT(found[2], HasSubstr("rank 1"));
}

TEST(DeviceMesh, RefusesMoreRanksThanThereAre) {
  RunRanks(2, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}});
    CH_EXPECT_THAT(std::string(mesh.status().message()),
                   HasSubstr("needs 4 ranks, but the world has 2 ranks"));
    return absl::OkStatus();
  });
}

// Two stages with a World each: ranks {0, 1} and {4, 2, 3}.
absl::StatusOr<World*> StageOf(World& world) {
  return world.Subset(world.rank() < 2 ? std::vector<int>{0, 1}
                                       : std::vector<int>{4, 2, 3});
}

TEST(WorldOfSomeRanks, HasMeshesOfItsOwnRanks) {
  RunRanks(5, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(World* const stage, StageOf(world));
    CH_ASSIGN_OR_RETURN(
        const DeviceMesh mesh,
        InitDeviceMesh(*stage, {{"fsdp", stage->size()}, {"tp", 1}}));
    CH_EXPECT_EQ(mesh.ToString(), world.rank() < 2
                                      ? "mesh(fsdp=2, tp=1)"
                                      : "mesh(fsdp=3, tp=1, ranks=[4,2,3])");
    CH_EXPECT_EQ(mesh.index(0), stage->rank());
    CH_ASSIGN_OR_RETURN(Communicator * comm, mesh.communicator("fsdp", "s"));
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        comm->Exchange(absl::StrCat(world.rank()), "ranks"));
    CH_EXPECT_EQ(absl::StrJoin(all, ","), world.rank() < 2 ? "0,1" : "4,2,3");
    // A mesh without one of the stage's ranks.
    CH_ASSIGN_OR_RETURN(const DeviceMesh first,
                        InitDeviceMesh(*stage, {{"a", 1}}));
    CH_EXPECT_EQ(first.coordinate().has_value(), stage->rank() == 0);
    // The world of all ranks still works.
    CH_ASSIGN_OR_RETURN(const DeviceMesh whole,
                        InitDeviceMesh(world, {{"a", 5}}));
    CH_EXPECT_EQ(whole.index(0), world.rank());
    return absl::OkStatus();
  });
}

TEST(WorldOfSomeRanks, ErrorsNameRanksOfTheJob) {
  RunRanks(5, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(World* const stage, StageOf(world));
    if (world.rank() < 2) return absl::OkStatus();
    const auto message = [](const absl::Status& status) {
      return std::string(status.message());
    };
    CH_EXPECT_THAT(message(InitDeviceMesh(*stage, {{"a", 4}}).status()),
                   HasSubstr("mesh(a=4) needs 4 ranks, but the world has 3 "
                             "ranks: 4, 2, 3"));
    CH_EXPECT_THAT(message(InitDeviceMesh(*stage, {{"a", 2}}, {2, 1}).status()),
                   HasSubstr("needs rank 1, but the world has 3 ranks"));
    CH_EXPECT_THAT(
        message(InitDeviceMesh(*stage, {{"a", stage->rank() == 1 ? 2 : 3}})
                    .status()),
        HasSubstr("rank 4 gives mesh(a=3, ranks=[4,2,3]), rank 2 gives "
                  "mesh(a=2, ranks=[4,2])"));
    return absl::OkStatus();
  });
}

TEST(WorldOfSomeRanks, AFailureFailsTheJobAndNamesTheWorldRank) {
  const absl::Status status =
      StatusOfRanks(5, [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(World* const stage, StageOf(world));
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(*stage, {{"a", stage->size()}}));
        // The last rank of the second stage.
        if (world.rank() == 3) return absl::DataLossError("no batch");
        CH_ASSIGN_OR_RETURN(Communicator * comm, mesh.communicator(0, "s"));
        while (true) {
          CH_RETURN_IF_ERROR(comm->Exchange("", "batch").status());
        }
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no batch"));
}

TEST(DeviceMesh, AnUnknownAxisIsNotFound) {
  RunRanks(2, [](World& world) -> absl::Status {
    auto mesh = InitDeviceMesh(world, {{"tp", 2}});
    CH_EXPECT_TRUE(absl::IsNotFound(mesh->communicator("dp", "s").status()));
    CH_EXPECT_TRUE(absl::IsNotFound(mesh->Slice("dp").status()));
    return absl::OkStatus();
  });
}

TEST(DeviceMesh, AnAxisMayHaveATimeoutOfItsOwn) {
  const absl::Status status =
      StatusOfRanks(6, [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(
            const DeviceMesh mesh,
            InitDeviceMesh(world, {{"fsdp", 1}, {"tp", 3}, {"context", 2}}));
        CH_RETURN_IF_ERROR(mesh.SetTimeout("context", absl::Seconds(1)));
        CH_ASSIGN_OR_RETURN(const DeviceMesh axis, mesh.Slice("context"));
        CH_ASSIGN_OR_RETURN(Communicator * comm, axis.communicator(0, "s"));
        // The last rank of the last pair does not come.
        if (world.rank() < 5) return comm->Exchange("", "step").status();
        while (!world.context().poisoned())
          absl::SleepFor(absl::Milliseconds(1));
        return world.context().status();
      });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("group 'context' (ranks 4, 5) timed out after 1s"));
}

TEST(DeviceMesh, ATimeoutIsSetBeforeTheFirstUseOfAnAxis) {
  RunRanks(2, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"tp", 2}}));
    const absl::Duration time = absl::Seconds(30);
    CH_EXPECT_TRUE(absl::IsNotFound(mesh.SetTimeout("dp", time)));
    CH_EXPECT_TRUE(
        absl::IsInvalidArgument(mesh.SetTimeout("tp", absl::ZeroDuration())));
    CH_RETURN_IF_ERROR(mesh.SetTimeout("tp", time));
    CH_ASSIGN_OR_RETURN(const auto comm,
                        world.Group("x", world.AllRanks(), "s"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh other,
                        DeviceMeshFromCommunicator(world, "ep", comm, "s"));
    CH_RETURN_IF_ERROR(mesh.communicator("tp", "s").status());
    for (const auto& [used, axis] :
         {std::pair(mesh, "tp"), std::pair(other, "ep")}) {
      const absl::Status late = used.SetTimeout(axis, time);
      CH_EXPECT_TRUE(absl::IsFailedPrecondition(late));
      CH_EXPECT_THAT(std::string(late.message()), HasSubstr("first use"));
    }
    return absl::OkStatus();
  });
}

TEST(DeviceMeshDeathTest, NamesAnAxisThatIsNotThere) {
  const auto run = [] {
    RunRanks(1, [](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"tp", 1}}));
      (void)mesh.index(1);
      return absl::OkStatus();
    });
  };
  EXPECT_DEATH(run(), "axis 1 of mesh\\(tp=1\\)");
}

}  // namespace
}  // namespace crosshatch
