// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs `check`, which returns what is wrong on its rank, on `ranks` ranks.
template <typename Check>
std::vector<std::string> OnRanks(int ranks, Check check) {
  std::vector<std::string> found(ranks);
  RunRanks(ranks, [&](World& world) {
    found[world.rank()] = check(world);
    return absl::OkStatus();
  });
  return found;
}

TEST(DeviceMesh, GivesEveryRankItsPlaceAndItsGroups) {
  const auto found = OnRanks(6, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 3}});
    if (!mesh.ok()) return mesh.status().ToString();
    if (mesh->ToString() != "mesh(fsdp=2, tp=3)") return mesh->ToString();
    const int rank = world.rank();
    if (mesh->index(0) != rank / 3 || mesh->index(1) != rank % 3) {
      return "coordinate";
    }
    auto tp = mesh->communicator("tp", "compute");
    if (!tp.ok()) return tp.status().ToString();
    if ((*tp)->name() != "tp" || (*tp)->rank() != rank % 3) return "tp";
    const std::vector<int> row = {rank / 3 * 3, rank / 3 * 3 + 1,
                                  rank / 3 * 3 + 2};
    if ((*tp)->world_ranks() != row) return "row";
    const int both[] = {0, 1};
    auto all = mesh->communicator(both, "compute");
    if (!all.ok()) return all.status().ToString();
    if ((*all)->name() != "fsdp,tp" || (*all)->size() != 6) return "all";
    return "";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, SlicesShareTheCommunicatorsOfTheirRoot) {
  const auto found = OnRanks(4, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}});
    auto tp = mesh->Slice("tp");
    if (!tp.ok()) return tp.status().ToString();
    if (*tp->communicator(0, "s") != *mesh->communicator(1, "s")) return "tp";
    if (*tp->communicator(0, "s") == *tp->communicator(0, "t")) return "stream";
    const std::vector<std::string> swapped = {"tp", "fsdp"};
    auto turned = mesh->Slice(swapped);
    if (turned->ToString() != "mesh(tp=2, fsdp=2, ranks=[0,2,1,3])") {
      return turned->ToString();
    }
    auto fsdp = mesh->Slice("fsdp");
    const DeviceMesh parts[] = {*fsdp, *tp};
    auto joined = DeviceMesh::Concatenate(parts);
    if (!joined.ok() || *joined != *mesh) return "concatenate";
    if (tp->root() != *mesh) return "root";
    auto again = mesh->Slice("tp");
    return *again == *tp ? "" : "equality";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, FlattensAndUnflattens) {
  const auto found = OnRanks(4, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"world", 4}});
    const MeshAxis axes[] = {{"a", 2}, {"b", 2}};
    auto split = mesh->Unflatten("world", axes);
    if (!split.ok()) return split.status().ToString();
    if (split->ToString() != "mesh(a=2, b=2)") return split->ToString();
    const std::vector<std::string> names = {"a", "b"};
    auto flat = split->Flatten(names, "ab");
    if (!flat.ok()) return flat.status().ToString();
    auto comm = flat->communicator("ab", "s");
    return comm.ok() && (*comm)->size() == 4 ? "" : "communicator";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, FlattenedAxesShareOneCommunicatorByName) {
  const auto found = OnRanks(4, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"a", 2}, {"b", 2}});
    const std::vector<std::string> names = {"a", "b"};
    auto flat = mesh->Flatten(names, "ab");
    auto again = mesh->Flatten(names, "ab");
    auto renamed = mesh->Flatten(names, "dp");
    if (*flat != *again || *flat == *renamed) return "equality";
    if (flat->root() != *mesh || renamed->root() != *mesh) return "root";
    auto slice = flat->Slice("ab");
    if (*flat->communicator("ab", "s") != *again->communicator("ab", "s") ||
        *flat->communicator("ab", "s") != *slice->communicator("ab", "s")) {
      return "communicator";
    }
    if ((*renamed->communicator("dp", "s"))->name() != "dp") return "name";
    return mesh->communicators().size() == 2 ? "" : "count";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, MeshesOfOneWorldShareItsCommunicators) {
  const auto found = OnRanks(2, [](World& world) -> std::string {
    auto one = InitDeviceMesh(world, {{"dp", 2}});
    auto two = InitDeviceMesh(world, {{"dp", 2}});
    if (*one != *two || absl::HashOf(*one) != absl::HashOf(*two)) return "==";
    if (*one->communicator("dp", "s") != *two->communicator("dp", "s")) {
      return "communicator";
    }
    auto other = InitDeviceMesh(world, {{"dp", 2}}, {1, 0});
    return *one == *other ? "order" : "";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, IsMadeOverCommunicatorsThatExist) {
  const auto found = OnRanks(6, [](World& world) -> std::string {
    // Of the six, ranks 1, 4 / 5, 2 in that order.
    const std::vector<int> ranks = {1, 4, 5, 2};
    const MeshLayout layout =
        *MeshLayout::Create({{"dp", 2}, {"tp", 2}}, ranks);
    const int rank = world.rank();
    if (!layout.Contains(rank)) return "";
    const std::vector<std::shared_ptr<Communicator>> given = {
        *world.Group("mine", layout.GroupRanks({0}, rank), "s"),
        *world.Group("other", layout.GroupRanks({1}, rank), "s")};
    auto mesh = DeviceMeshFromCommunicators(world, layout, given, "s");
    if (!mesh.ok()) return mesh.status().ToString();
    if (mesh->layout() != layout || !mesh->coordinate()) return "layout";
    if (*mesh->communicator("dp", "s") != given[0].get() ||
        *mesh->Slice("tp")->communicator(0, "s") != given[1].get()) {
      return "communicator";
    }
    if (*mesh->communicator("dp", "t") == given[0].get()) return "stream";
    auto row = DeviceMeshFromCommunicator(world, "tp", given[1], "s");
    if (!row.ok()) return row.status().ToString();
    const std::vector<int> members = layout.GroupRanks({1}, rank);
    return std::vector<int>(row->layout().ranks().begin(),
                            row->layout().ranks().end()) == members
               ? ""
               : "row";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, CommunicatorsThatDoNotFitAreAnErrorOnEveryRank) {
  const auto found = OnRanks(4, [](World& world) -> std::string {
    const int rank = world.rank();
    const MeshLayout layout = *MeshLayout::Create({{"dp", 2}, {"tp", 2}});
    const std::vector<std::shared_ptr<Communicator>> given = {
        *world.Group("dp", layout.GroupRanks({0}, rank), "s"),
        *world.Group("tp", layout.GroupRanks({1}, rank), "s")};
    // Rank 3 alone describes another mesh: 0 shares no axis with it.
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
    if (turned.ok() || few.ok()) return "accepted";
    if (std::string(turned.status().message()).find("another one") ==
            std::string::npos ||
        std::string(few.status().message()).find("2 communicators, got 1") ==
            std::string::npos) {
      return turned.status().ToString();
    }
    return std::string(mesh.status().message());
  });
  EXPECT_THAT(found, testing::Each(HasSubstr("mesh(dp=2, pp=2)")));
}

TEST(DeviceMesh, AbortFailsItsGroups) {
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

TEST(DeviceMesh, AbortBeforeThereIsAGroupFailsTheJob) {
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

TEST(DeviceMesh, StandsForAnyRankOfADryRun) {
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
  const auto found = OnRanks(3, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"tp", 2}}, {2, 0});
    if (!mesh.ok()) return mesh.status().ToString();
    if (world.rank() == 1) {
      if (mesh->coordinate().has_value() || mesh->index(0)) return "member";
      if (mesh->Slice("tp").ok()) return "slice";
      // What only rearranges the mesh goes on knowing that this rank is not on
      // it.
      const std::string names[] = {"tp"};
      const auto flat = mesh->Flatten(names, "all");
      if (!flat.ok() || flat->coordinate().has_value()) return "flatten";
      const MeshAxis axes[] = {{"x", 1}, {"y", 2}};
      const auto split = mesh->Unflatten("tp", axes);
      if (!split.ok() || split->coordinate().has_value()) return "unflatten";
      const DeviceMesh parts[] = {*mesh};
      const auto joined = DeviceMesh::Concatenate(parts);
      if (!joined.ok() || joined->coordinate().has_value()) return "join";
      auto comm = mesh->communicator(0, "s");
      return std::string(comm.status().message());
    }
    return mesh->index(0) == (world.rank() == 2 ? 0 : 1) ? "" : "place";
  });
  EXPECT_THAT(found,
              ElementsAre("", HasSubstr("rank 1 is not on mesh(tp=2"), ""));
}

TEST(DeviceMesh, DifferentDescriptionsAreAnErrorOnEveryRank) {
  const auto found = OnRanks(4, [](World& world) -> std::string {
    auto mesh = world.rank() == 2 ? InitDeviceMesh(world, {{"tp", 4}})
                                  : InitDeviceMesh(world, {{"fsdp", 4}});
    return std::string(mesh.status().message());
  });
  EXPECT_THAT(found,
              testing::Each(HasSubstr(
                  "rank 0 gives mesh(fsdp=4), rank 2 gives mesh(tp=4)")));
}

TEST(DeviceMesh, AWrongMeshOnOneRankIsAnErrorOnEveryRank) {
  const auto found = OnRanks(2, [](World& world) -> std::string {
    auto mesh = world.rank() == 0
                    ? InitDeviceMesh(world, {{"tp", 2}})
                    : InitDeviceMesh(world, {{"tp", 1}, {"tp", 2}});
    return std::string(mesh.status().message());
  });
  EXPECT_THAT(found[0], HasSubstr("rank 1 gives an error ("));
  EXPECT_THAT(found[1], HasSubstr("tp"));
}

TEST(DeviceMesh, OrderRootAndNumberOfRanksAreCompared) {
  const auto found = OnRanks(4, [](World& world) -> std::string {
    const bool odd = world.rank() == 3;
    const std::vector<MeshAxis> axes = {{"a", 2}, {"b", 2}};
    const MeshLayout mesh = *MeshLayout::Create(axes);
    const std::vector<std::string> turn = {"b", "a"};
    // Alike but for its root.
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
      if (!absl::IsInvalidArgument(status)) return status.ToString();
    }
    return "";
  });
  EXPECT_THAT(found, testing::Each(""));
}

TEST(DeviceMesh, ARankThatMakesNoMeshIsAnErrorNotAHang) {
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
  const auto found = OnRanks(2, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}});
    return std::string(mesh.status().message());
  });
  EXPECT_THAT(found, testing::Each(
                         HasSubstr("needs rank 3, but the world has 2 ranks")));
}

TEST(DeviceMesh, AnUnknownAxisIsNotFound) {
  const auto found = OnRanks(2, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"tp", 2}});
    if (!absl::IsNotFound(mesh->communicator("dp", "s").status()))
      return "comm";
    return absl::IsNotFound(mesh->Slice("dp").status()) ? "" : "slice";
  });
  EXPECT_THAT(found, testing::Each(""));
}

}  // namespace
}  // namespace crosshatch
