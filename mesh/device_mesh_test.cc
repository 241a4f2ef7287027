// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs `check`, which returns what is wrong on its rank, on `ranks` ranks.
template <typename Check>
std::vector<std::string> OnRanks(int ranks, Check check) {
  std::vector<std::string> found(ranks);
  const absl::Status status = RunLocal(ranks, [&](World& world) {
    found[world.rank()] = check(world);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
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

TEST(DeviceMesh, LeavesOutRanks) {
  const auto found = OnRanks(3, [](World& world) -> std::string {
    auto mesh = InitDeviceMesh(world, {{"tp", 2}}, {2, 0});
    if (!mesh.ok()) return mesh.status().ToString();
    if (world.rank() == 1) {
      if (mesh->coordinate().has_value() || mesh->index(0)) return "member";
      if (mesh->Slice("tp").ok()) return "slice";
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
