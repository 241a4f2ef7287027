// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

TEST(Random, IsTheSameOnEveryMeshAndLayout) {
  for (const DType dtype : {kFloat32, kBFloat16, kFloat64}) {
    const Tensor normal = Empty({5, 7}, dtype);
    FillNormal(normal, 3, "w", 1, 0.5);
    const Tensor uniform = Empty({5, 7}, dtype);
    FillUniform(uniform, 3, "w", -1, 2, 8);
    const std::vector<float> normals = normal.ToVector<float>();
    const std::vector<float> uniforms = uniform.ToVector<float>();
    OnMeshes({{1}, {3}, {2, 2}}, [&](const DeviceMesh& mesh) {
      const auto dense = [&](const std::vector<float>& values) {
        return ToDType(FromValues<float>({5, 7}, values), dtype);
      };
      for (const Layout& layout : AllLayouts(mesh.layout(), 2, false)) {
        const Tensor t = DistributeTensor(Zeros({5, 7}, dtype), mesh, layout);
        FillNormal(t, 3, "w", 1, 0.5);
        CH_EXPECT_EQ(Differs(t, dense(normals)), "");
        FillUniform(t, 3, "w", -1, 2, 8);
        CH_EXPECT_EQ(Differs(t, dense(uniforms)), "");
      }
    });
  }
}

TEST(Random, FillsStridedTensors) {
  const Tensor t = Zeros({4, 6});
  FillUniform(Transpose(t, 0, 1), 1, "x");
  const Tensor dense = Empty({6, 4});
  FillUniform(dense, 1, "x");
  EXPECT_EQ(Clone(Transpose(t, 0, 1)).ToVector<float>(),
            dense.ToVector<float>());
}

TEST(Random, DiffersBySeedNameAndStep) {
  const auto draw = [](uint64_t seed, const char* name, uint64_t step) {
    const Tensor t = Empty({4});
    FillNormal(t, seed, name, 0, 1, step);
    return t.ToVector<float>();
  };
  const std::vector<float> base = draw(1, "a", 0);
  EXPECT_EQ(draw(1, "a", 0), base);
  EXPECT_NE(draw(2, "a", 0), base);
  EXPECT_NE(draw(1, "b", 0), base);
  EXPECT_NE(draw(1, "a", 1), base);
  EXPECT_NE(RandomKeyOf(1, "ab"), RandomKeyOf(1, "ba"));
}

TEST(Random, HasTheRequestedMoments) {
  const int n = 100000;
  const Tensor t = Empty({n});
  FillNormal(t, 5, "n", 2, 3);
  double sum = 0;
  double squares = 0;
  for (const float x : t.ToVector<float>()) {
    sum += x;
    squares += (x - 2.0) * (x - 2.0);
  }
  // Five standard deviations of the estimates.
  EXPECT_NEAR(sum / n, 2, 5 * 3 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 9, 5 * 9 * std::sqrt(2.0 / n));

  FillUniform(t, 5, "u", -1, 3);
  sum = 0;
  for (const float x : t.ToVector<float>()) {
    EXPECT_TRUE(x >= -1 && x < 3) << x;
    sum += x;
  }
  EXPECT_NEAR(sum / n, 1, 5 * 4 / std::sqrt(12.0 * n));
}

TEST(RandomDeathTest, RefusesPendingSums) {
  ExpectDeathOn({2}, "reductions are pending", [](const DeviceMesh& mesh) {
    FillNormal(Spread(Zeros({2}), mesh, Sums(mesh, 1)), 1, "w");
  });
}

}  // namespace
}  // namespace crosshatch
