// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/initializer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> Fill(const Shape& sizes, const Initializer& initializer,
                         DType dtype = kFloat32) {
  const Tensor t = Empty(sizes, dtype);
  EXPECT_TRUE(CheckInitializer("w", t, initializer).ok());
  FillInitial(t, initializer, /*seed=*/3, "w");
  return t.ToVector<double>();
}

/// Returns the standard deviation around `mean`.
double Spread(const std::vector<double>& values, double mean = 0) {
  double squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Returns five standard deviations of the sample variance of n samples, which
// is off by sqrt((kurtosis - 1) / n), as an error of the standard deviation.
// The kurtosis is at most 3, and the root halves the error.
double Bound(double stddev, size_t n) {
  return stddev * 5 * std::sqrt(2.0 / static_cast<double>(n)) / 2;
}

TEST(InitializerTest, FillsWithConstants) {
  EXPECT_THAT(Fill({5}, init::Constant(2.5)), Each(2.5));
  EXPECT_THAT(Fill({2}, init::Constant(7), kInt64), Each(7));
}

// The scales of a weight with 60 outputs and 20 inputs of 3 elements.
TEST(InitializerTest, FansAreThoseOfTheGlobalShape) {
  const Shape sizes = {60, 20, 3};
  const struct {
    const char* name;
    Initializer initializer;
    double stddev;
    double largest;  ///< 0: not bounded.
  } cases[] = {
      {"normal", init::Normal(0.5), 0.5, 0},
      {"uniform", init::Uniform(-0.3, 0.3), 0.3 / std::sqrt(3.0), 0.3},
      {"xavier_uniform", init::XavierUniform(), std::sqrt(2.0 / 240),
       std::sqrt(6.0 / 240)},
      {"xavier_normal", init::XavierNormal(2), 2 * std::sqrt(2.0 / 240), 0},
      {"kaiming_uniform", init::KaimingUniform(), std::sqrt(2.0 / 60),
       std::sqrt(6.0 / 60)},
      {"kaiming_uniform of torch's layers", init::KaimingUniform(std::sqrt(5)),
       std::sqrt(1.0 / 3 / 60), std::sqrt(1.0 / 60)},
      {"kaiming_normal", init::KaimingNormal(0, Initializer::Fan::kOut),
       std::sqrt(2.0 / 180), 0},
      {"scaled_residual", init::ScaledResidual(8), 0.02 / 4, 0},
  };
  for (const auto& c : cases) {
    const std::vector<double> values = Fill(sizes, c.initializer);
    EXPECT_NEAR(Spread(values), c.stddev, Bound(c.stddev, values.size()))
        << c.name;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    if (c.largest == 0) continue;
    // One of 3600 uniform samples is near either end, except with probability
    // 1e-15.
    EXPECT_LE(std::max(-*low, *high), c.largest * (1 + 1e-6)) << c.name;
    EXPECT_GE(std::min(-*low, *high), c.largest * 0.98) << c.name;
  }
  EXPECT_NEAR(Spread(Fill(sizes, init::Normal(0.5, 7)), 7), 0.5,
              Bound(0.5, 3600));
}

// A standard normal truncated at two deviations has 0.774 of its variance.
TEST(InitializerTest, TruncatesByDrawingAnew) {
  const std::vector<double> values =
      Fill({100, 100}, init::TruncatedNormal(0.5, 1, 0, 2));
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, 0);
  EXPECT_LE(*high, 2);
  const double stddev = 0.5 * std::sqrt(0.77374);
  EXPECT_NEAR(Spread(values, 1), stddev, Bound(stddev, values.size()));
  // Samples outside are drawn again, not moved to the bounds.
  EXPECT_EQ(std::count(values.begin(), values.end(), 0.0) +
                std::count(values.begin(), values.end(), 2.0),
            0);
  // Bounds that hardly cut change nothing.
  EXPECT_EQ(Fill({50}, init::TruncatedNormal(0.1, 0, -2, 2)),
            Fill({50}, init::Normal(0.1)));
}

TEST(InitializerTest, CallsAFunctionForEachElement) {
  const Initializer by_place = init::ByElement([](const InitElement& e) {
    return static_cast<double>(e.index[0] * 10 + e.index[1] + e.sizes[1]);
  });
  EXPECT_THAT(Fill({2, 3}, by_place), ElementsAre(3, 4, 5, 13, 14, 15));
  EXPECT_THAT(Fill({2, 3}, by_place, kInt32), ElementsAre(3, 4, 5, 13, 14, 15));
  const std::vector<double> random =
      Fill({1000}, init::ByElement([](const InitElement& e) {
             EXPECT_NE(e.Uniform(0), e.Uniform(4));
             return e.Uniform(5);
           }));
  EXPECT_NEAR(Spread(random, 0.5), std::sqrt(1.0 / 12),
              Bound(std::sqrt(1.0 / 12), 1000));
}

TEST(InitializerTest, ValuesAreEqualOnEveryMesh) {
  const Shape sizes = {5, 7};
  const std::vector<Initializer> initializers = {
      init::XavierUniform(), init::KaimingNormal(),
      init::TruncatedNormal(1, 0, -0.5, 0.5),
      init::ByElement([](const InitElement& e) {
        return e.Uniform(9) + static_cast<double>(e.index[0]);
      })};
  std::vector<std::vector<double>> whole;
  for (const Initializer& each : initializers) {
    whole.push_back(Fill(sizes, each));
  }
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    const Layout r = Layout::Replicated(mesh.layout(), 2);
    for (const Layout& layout :
         {r, r.WithShard(0, 0), r.WithShard(1, 0).WithShard(0, 0),
          r.WithShard(0, 0).WithShard(1, 1), r.WithShard(0, 1)}) {
      const Box box = layout.LocalBox(sizes, *mesh.coordinate());
      for (size_t i = 0; i < initializers.size(); ++i) {
        Parameter w(sizes, kFloat32, initializers[i]);
        w.set_name("w");
        w.set_data(MakeDTensor(Deferred(box.sizes, kFloat32, "w"), mesh, layout,
                               sizes));
        CH_RETURN_IF_ERROR(Materialize({&w}, {.seed = 3}));
        CH_EXPECT_EQ(FullTensor(w.data()).ToVector<double>(), whole[i]);
      }
    }
    return absl::OkStatus();
  });
}

TEST(InitializerTest, PrintsItsDistribution) {
  EXPECT_EQ(Initializer{}.ToString(), "zeros");
  EXPECT_EQ(Initializer{.kind = Initializer::Kind::kOnes}.ToString(), "ones");
  EXPECT_EQ(init::Constant(0.5).ToString(), "constant(0.5)");
  EXPECT_EQ(init::Normal(2, 1).ToString(), "normal(mean 1, stddev 2)");
  EXPECT_EQ(init::Uniform(-1, 1).ToString(), "uniform[-1, 1)");
  EXPECT_EQ(init::TruncatedNormal().ToString(),
            "normal(mean 0, stddev 1) within [-2, 2)");
  EXPECT_EQ(init::KaimingNormal(1).ToString(),
            "normal(mean 0, stddev 1 / sqrt(fan_in))");
  EXPECT_EQ(init::KaimingNormal(1, Initializer::Fan::kOut).ToString(),
            "normal(mean 0, stddev 1 / sqrt(fan_out))");
  EXPECT_EQ(init::XavierNormal().ToString(),
            "normal(mean 0, stddev 1 / sqrt(mean of fan_in and fan_out))");
  EXPECT_EQ(init::ByElement([](const auto&) { return 0.0; }).ToString(),
            "by element");
}

TEST(InitializerTest, RejectsUnsuitableTensors) {
  const auto message_of = [](const Shape& sizes, DType dtype,
                             const Initializer& initializer) {
    Parameter parameter(sizes, kFloat32, initializer);
    parameter.set_name("w");
    const absl::Status checked =
        CheckInitializer("parameter w", Empty(sizes, dtype), initializer);
    EXPECT_TRUE(absl::IsInvalidArgument(checked)) << checked;
    return std::string(checked.message());
  };
  EXPECT_THAT(message_of({3}, kFloat32, init::XavierNormal()),
              HasSubstr("cannot fill parameter w f32[3] on cpu: its "
                        "initializer depends on the numbers"));
  EXPECT_THAT(message_of({3}, kInt64, init::Normal(1)),
              HasSubstr("draws random numbers"));
  EXPECT_THAT(message_of({3}, kFloat32, init::TruncatedNormal(1, 0, 3, 4)),
              HasSubstr("is between 3 and 4"));
  EXPECT_THAT(message_of({3}, kFloat32, init::Uniform(1, -1)),
              HasSubstr("a uniform distribution has no bounds 1 and -1"));
  EXPECT_THAT(message_of({3}, kFloat32, init::Normal(-0.5)),
              HasSubstr("standard deviation -0.5"));
  // Materialize reports the error before it fills anything.
  Parameter good({2}, kFloat32, init::Constant(1));
  Parameter bad({2}, kFloat32, init::KaimingUniform());
  good.set_name("good");
  bad.set_name("bad");
  EXPECT_THAT(std::string(Materialize({&good, &bad}, {}).message()),
              HasSubstr("cannot fill parameter bad"));
  EXPECT_FALSE(good.has_memory());
}

// Fills a parameter by each initializer and returns the memory peaks of all
// classes.
std::vector<std::vector<int64_t>> PeaksOfFilling(bool calls) {
  std::vector<std::vector<int64_t>> peaks;
  Allocator& allocator = RankContext::Current().allocator();
  for (const DType dtype : {kFloat16, kBFloat16, kFloat32, kFloat64}) {
    for (const Initializer& by :
         {init::Constant(1), init::Normal(1), init::Uniform(0, 1),
          init::TruncatedNormal(), init::KaimingUniform(),
          init::ByElement([calls](const InitElement&) {
            EXPECT_TRUE(calls);
            return 0.0;
          })}) {
      for (const bool transposed : {false, true}) {
        const Tensor all = Empty({6, 35}, dtype);
        allocator.ResetPeaks();
        FillInitial(transposed ? Transpose(all, 0, 1) : all, by, 0, "w");
        const MemoryStats& stats = allocator.stats();
        peaks.emplace_back(stats.peak.begin(), stats.peak.end());
      }
    }
  }
  return peaks;
}

TEST(InitializerTest, ADryRunFillsNothingAndAccountsTheSame) {
  std::vector<std::vector<int64_t>> dry;
  const absl::Status status = RunFake({}, [&](World&) {
    dry = PeaksOfFilling(/*calls=*/false);
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(dry, PeaksOfFilling(/*calls=*/true));
}

}  // namespace
}  // namespace crosshatch::nn
