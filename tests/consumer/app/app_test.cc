// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "crosshatch/base/reduce_op.h"
#include "gtest/gtest.h"
#include "mesh/device_mesh.h"
#include "nlohmann/json.hpp"

namespace consumer {
namespace {

TEST(AppTest, OwnRepositoryWins) {
#ifdef CONSUMER_OWN_JSON
  SUCCEED();
#else
  FAIL() << "@nlohmann_json is not the one of this WORKSPACE";
#endif
}

TEST(AppTest, OwnMeshPackageDoesNotCollide) {
  EXPECT_EQ(DeviceMesh{12}.triangles, 12);
}

}  // namespace
}  // namespace consumer
