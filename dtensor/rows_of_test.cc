// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

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

}  // namespace
}  // namespace crosshatch
