// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

// Reductions in 16 bits. The ranks' parts stay in f32 until they are combined.
// So a mesh gives the result of one rank even if a part exceeds the range of
// f16 or would be rounded.

struct HalfCase {
  const char* name;
  // One value for each of ten rows.
  std::vector<float> rows;
  std::function<Tensor(const Tensor&)> reduce;
  // Whether pending sums of the input give the same result.
  bool of_sums = true;
  // Pending sums that are cast to bf16 are rounded part by part, like products;
  // their range is that of f32.
  bool of_bf16 = true;
};

void PrintTo(const HalfCase& c, std::ostream* out) { *out << c.name; }

std::vector<HalfCase> HalfCases() {
  // Five rows add up to 76,800, beyond the range of f16. Ten add up to 1,024.
  // Their few bits keep pending parts exact, too.
  const std::vector<float> sums = {15360,  15360,  15360,  15360,  15360,
                                   -15360, -15360, -15360, -15360, -14336};
  const std::vector<float> products = {
      128,       128,       128,       128,      128,
      0.0078125, 0.0078125, 0.0078125, 0.015625, 0.03125};
  const std::vector<float> powers = {0.25, 4,   0.5, 100,   3,
                                     7,    120, 11,  0.125, 100};
  return {
      {"Sum", sums, [](const Tensor& t) { return Sum(t, {0}); }},
      {"SumOfAll", sums, [](const Tensor& t) { return Sum(t); }},
      {"Mean", sums, [](const Tensor& t) { return Mean(t, {0}, true); }},
      {"Prod", products, [](const Tensor& t) { return Prod(t, {0}); }, false},
      {"SumOfSquares", powers,
       [](const Tensor& t) { return SumOfSquares(t, {0}); }, false},
      {"FirstNorm", powers, [](const Tensor& t) { return Norm(t, 1, {0}); },
       false},
      {"SecondNorm", powers, [](const Tensor& t) { return Norm(t, 2, {0}); },
       false},
      {"Var", powers, [](const Tensor& t) { return Var(t, {0}); }, false},
      {"CastOfASum", sums,
       [](const Tensor& t) {
         return ToDType(Sum(ToDType(t, kFloat32), {0}), t.dtype());
       },
       true, /*of_bf16=*/false},
      {"GradientOfExpand", sums,
       [](const Tensor& t) {
         return SumTo(t, {1, 2});
       }},
  };
}

class HalfReductionTest : public testing::TestWithParam<HalfCase> {};

TEST_P(HalfReductionTest, GivesWhatOneRankGives) {
  const HalfCase& c = GetParam();
  std::vector<float> values;
  for (const float row : c.rows) values.insert(values.end(), {row, 1});
  const Tensor wide = FromValues<float>({10, 2}, values);
  for (const DType dtype : {kFloat16, kBFloat16}) {
    if (dtype == kBFloat16 && !c.of_bf16) continue;
    const Tensor dense = ToDType(wide, dtype);
    const Tensor expected = ToDType(c.reduce(dense), kFloat32);
    OnMeshes({{2}, {3}, {2, 2}}, [&](const DeviceMesh& mesh) {
      NoGrad no_grad;
      for (const Layout& layout :
           AllLayouts(mesh.layout(), 2, c.of_sums && mesh.ndim() == 1)) {
        const Tensor actual =
            ToDType(c.reduce(Spread(dense, mesh, layout)), kFloat32);
        // The sums in f32 are in another order, and rounded once: one unit.
        CH_EXPECT_EQ(
            Differs(actual, expected, dtype == kFloat16 ? 0x1p-10 : 0x1p-7), "")
            << dtype << layout.ToString();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HalfReductionTest, testing::ValuesIn(HalfCases()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace crosshatch
