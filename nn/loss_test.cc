// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/loss.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribution/implicit_redistribution.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using Reduction = CrossEntropyLossOptions::Reduction;

constexpr int64_t kRows = 5;
constexpr int64_t kClasses = 4;

// What PyTorch 2.15 gives in float64, with
//   x = [((i * 37 + 11) % 17 - 8) / 4 for i in range(20)] as [5, 4]
//   t = [2, 0, -100, 3, 2], w = [0.5, 2, 1, 0.25]
//   p = [((i * 5 + 3) % 7) / 8 for i in range(20)] as [5, 4]
//   F.cross_entropy(x, t or p, weight=w, label_smoothing=0.3, reduction=...)
struct Golden {
  const char* name;
  bool probabilities;
  bool weighted;
  double smoothing;
  std::vector<double> losses;
  double sum;
  double mean;
  std::vector<double> gradient;
};

const std::vector<Golden>& Goldens() {
  static const std::vector<Golden> goldens = {
      {"indices",
       false,
       false,
       0,
       {3.948838595118, 2.838284284098, 0, 3.198838595118, 0.5456293442258},
       10.53159081856,
       2.63289770464,
       {0.0753860558884,
        0.1595922815681,
        -0.2451807306822,
        0.01020239322575,
        -0.2353685015372,
        0.0309748824888,
        0.06557382674336,
        0.1388197923051,
        0,
        0,
        0,
        0,
        0.0753860558884,
        0.1595922815681,
        0.004819269317755,
        -0.2397976067743,
        0.03232469772964,
        0.06843138563065,
        -0.1051307554831,
        0.004374672122779}},
      {"indices_smoothed",
       false,
       false,
       0.3,
       {3.423838595118, 2.500784284098, 0, 2.898838595118, 0.9768793442258},
       9.80034081856,
       2.45008520464,
       {0.0566360558884,
        0.1408422815681,
        -0.1889307306822,
        -0.008547606774253,
        -0.1791185015372,
        0.0122248824888,
        0.04682382674336,
        0.1200697923051,
        0,
        0,
        0,
        0,
        0.0566360558884,
        0.1408422815681,
        -0.01393073068225,
        -0.1835476067743,
        0.01357469772964,
        0.04968138563065,
        -0.04888075548308,
        -0.01437532787722}},
      {"indices_weighted",
       false,
       true,
       0,
       {3.948838595118, 1.419142142049, 0, 0.7997096487795, 0.5456293442258},
       6.713319730172,
       2.441207174608,
       {0.1096524449286,
        0.2321342277354,
        -0.356626517356,
        0.014839844692,
        -0.1711770920271,
        0.02252718726458,
        0.04769005581335,
        0.1009598489491,
        0,
        0,
        0,
        0,
        0.02741311123214,
        0.05803355693385,
        0.001752461570093,
        -0.08719912973609,
        0.04701774215221,
        0.09953656091732,
        -0.1529174625208,
        0.006363159451315}},
      {"indices_weighted_smoothed",
       false,
       true,
       0.3,
       {3.23261037146, 1.524479454337, 0, 1.028220109023, 0.7697737940216},
       6.555083728841,
       2.383666810487,
       {0.0939600979498,
        0.1732362564199,
        -0.2749397701556,
        0.007743415785839,
        -0.1274747150478,
        -0.02610488062392,
        0.03293596819163,
        0.1206436274801,
        0,
        0,
        0,
        0,
        0.0363925643623,
        0.05136578685883,
        -0.02407448490731,
        -0.06368386631382,
        0.03249979585049,
        0.04312479585466,
        -0.07505026009857,
        -0.0005743316065789}},
      {"probabilities",
       true,
       false,
       0,
       {5.066717541457, 1.766605355122, 2.737211961659, 2.161193419508,
        2.318444016339},
       14.05017229408,
       2.810034458817,
       {0.03054047824376,  0.1984291941953,   -0.1432530229551,
        -0.08571664948395, -0.03536850153721, 0.0309748824888,
        -0.05942617325664, 0.06381979230505,  -0.005979051998371,
        -0.1097326527646,  -0.01475402523363, 0.1304657299966,
        0.06784745029956,  0.01863305341129,  -0.07066265761402,
        -0.01581784609683, -0.1112103627244,  -0.01788233724321,
        0.1238430934203,   0.005249606547335}},
      {"probabilities_smoothed",
       true,
       false,
       0.3,
       {4.206353857555, 1.750609033815, 2.43003365839, 2.172486972191,
        2.217849614705},
       12.77733313666,
       2.555466627331,
       {0.02447098818384,  0.1622025835131,    -0.1141204914323,
        -0.07255308026459, -0.03624639144498,  0.01411638953947,
        -0.04086060286124, 0.06299060476675,   -0.01567377676779,
        -0.08437888513788, -0.009590099245136, 0.1096427611508,
        0.05058586862291,  0.03634528496425,   -0.06330723569355,
        -0.0236239178936,  -0.08508932645199,  -0.01109410351889,
        0.1064587840783,   -0.0102753541074}},
      {"probabilities_weighted",
       true,
       true,
       0,
       {3.698475656093, 1.246364864707, 4.015729103708, 2.141826423164,
        2.199147684367},
       13.30154373204,
       2.660308746408,
       {0.04165535868282,  0.1175718956465,   -0.1449397672164,
        -0.01428748711297, -0.01512373853762, 0.02090804567994,
        -0.08073766694823, 0.07495335980591,  0.01237354738675,
        -0.247342699769,   0.01147550546371,  0.2234936469186,
        0.09988652405213,  -0.03854022692227, -0.06861446815398,
        0.007268171024115, -0.03297789295146, -0.1110391986801,
        0.138330017872,    0.005687073759613}},
      {"probabilities_weighted_smoothed",
       true,
       true,
       0.3,
       {3.057356314142, 1.403535360198, 3.342090327498, 1.967701851092,
        1.92723663212},
       11.69792048505,
       2.33958409701,
       {0.03862061365286,  0.08820859030538,  -0.115373501455,
        -0.01145570250328, -0.0147945298222,  -0.008395019464064,
        -0.05676225584651, 0.07995180513277,  0.00445357032485,
        -0.1961705412784,  0.007786964841855, 0.1839300061116,
        0.07938242941138,  -0.02106989549276, -0.06194579211129,
        0.003633258192674, -0.02331146807686, -0.09233037730921,
        0.1144265925267,   0.001215252859354}},
  };
  return goldens;
}

// The expected values are below 15 and have 13 digits.
constexpr double kTolerance = 1e-11;

Tensor Logits() {
  std::vector<double> values;
  for (int i = 0; i < kRows * kClasses; ++i) {
    values.push_back(((i * 37 + 11) % 17 - 8) / 4.0);
  }
  return FromValues<double>({kRows, kClasses}, values);
}

Tensor TargetsOf(const Golden& golden) {
  if (!golden.probabilities) {
    return FromValues<int64_t>({kRows}, {2, 0, -100, 3, 2});
  }
  std::vector<double> values;
  for (int i = 0; i < kRows * kClasses; ++i) {
    values.push_back((i * 5 + 3) % 7 / 8.0);
  }
  return FromValues<double>({kRows, kClasses}, values);
}

CrossEntropyLossOptions OptionsOf(const Golden& golden, Reduction reduction) {
  CrossEntropyLossOptions options;
  options.reduction = reduction;
  options.label_smoothing = golden.smoothing;
  if (golden.weighted) {
    options.class_weights = FromValues<double>({kClasses}, {0.5, 2, 1, 0.25});
  }
  return options;
}

void ExpectNear(const Tensor& t, const std::vector<double>& expected) {
  const std::vector<double> values = FullTensor(t).ToVector<double>();
  CH_EXPECT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
    CH_EXPECT_NEAR(values[i], expected[i], kTolerance) << i;
  }
}

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

class CrossEntropyLossTest : public ::testing::TestWithParam<Golden> {
 protected:
  static absl::Status Check(const Tensor& logits, const Tensor& targets) {
    const Golden& golden = GetParam();
    const Tensor x = logits.Detach().set_requires_grad(true);
    const ForbidImplicitRedistribution forbid;
    ExpectNear(
        CrossEntropyLoss(x, targets, OptionsOf(golden, Reduction::kNone)),
        golden.losses);
    ExpectNear(CrossEntropyLoss(x, targets, OptionsOf(golden, Reduction::kSum)),
               {golden.sum});
    const Tensor mean =
        CrossEntropyLoss(x, targets, OptionsOf(golden, Reduction::kMean));
    ExpectNear(mean, {golden.mean});
    CH_RETURN_IF_ERROR(Backward(mean));
    ExpectNear(x.grad(), golden.gradient);
    return absl::OkStatus();
  }
};

TEST_P(CrossEntropyLossTest, IsPyTorchs) {
  EXPECT_TRUE(Check(Logits(), TargetsOf(GetParam())).ok());
}

// Splits rows, classes, both or neither: 5 rows and 4 classes on 2 and 3 ranks.
TEST_P(CrossEntropyLossTest, IsThatOfOneRankOnAnyMesh) {
  for (const MeshAxes& axes :
       {MeshAxes({{"tp", 3}}), MeshAxes({{"dp", 2}, {"tp", 2}}),
        MeshAxes({{"dp", 2}, {"tp", 3}})}) {
    OnMesh(axes, [](const DeviceMesh& mesh) -> absl::Status {
      const Layout whole = Layout::Replicated(mesh.layout(), 2);
      const int last = mesh.ndim() - 1;
      std::vector<Layout> layouts = {whole, whole.WithShard(last, 1),
                                     whole.WithShard(last, 0)};
      if (mesh.ndim() == 2) {
        layouts.push_back(whole.WithShard(0, 0).WithShard(1, 1));
        layouts.push_back(whole.WithShard(1, 1).WithShard(0, 1));
      }
      for (const Layout& layout : layouts) {
        const Tensor logits = DistributeTensor(Logits(), mesh, layout);
        const Tensor targets = TargetsOf(GetParam());
        CH_RETURN_IF_ERROR(Check(logits, targets));
        Layout rows = Layout::Replicated(mesh.layout(), targets.ndim());
        for (const int axis : layout.axes_of_dim(0)) {
          rows = rows.WithShard(axis, 0);
        }
        CH_RETURN_IF_ERROR(
            Check(logits, DistributeTensor(targets, mesh, rows)));
      }
      return absl::OkStatus();
    });
  }
}

// Logits [batch, tokens, classes] with one mesh axis per dim. Batch or tokens
// have size 1, so some ranks have no rows.
TEST_P(CrossEntropyLossTest, IsThatOfOneRankOnThreeAxes) {
  OnMesh(
      {{"dp", 2}, {"sp", 2}, {"tp", 2}},
      [](const DeviceMesh& mesh) -> absl::Status {
        const bool of_classes = GetParam().probabilities;
        for (const Shape& rows : {Shape{1, kRows}, Shape{kRows, 1}}) {
          Shape sizes = rows;
          sizes.push_back(kClasses);
          const Layout whole = Layout::Replicated(mesh.layout(), 3);
          const Layout of_targets =
              Layout::Replicated(mesh.layout(), of_classes ? 3 : 2);
          const Tensor targets =
              View(TargetsOf(GetParam()), of_classes ? sizes : rows);
          for (const auto& [first, second] :
               {std::pair{0, 1}, {1, 0}, {0, 0}, {1, 1}}) {
            const Tensor logits = DistributeTensor(
                View(Logits(), sizes), mesh,
                whole.WithShard(0, first).WithShard(1, second).WithShard(2, 2));
            CH_RETURN_IF_ERROR(Check(logits, targets));
            CH_RETURN_IF_ERROR(Check(
                logits,
                DistributeTensor(
                    targets, mesh,
                    of_targets.WithShard(0, first).WithShard(1, second))));
          }
        }
        return absl::OkStatus();
      });
}

// The batch is split over fsdp as plain tensors, 3 rows and 2, one of them
// ignored. The mean is over all rows, and gradients are scaled for FullyShard
// to divide.
TEST_P(CrossEntropyLossTest, TakesTheMeanOverAnAxis) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const Golden& golden = GetParam();
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const int64_t begin = *fsdp.index(0) == 0 ? 0 : 3;
    const int64_t end = *fsdp.index(0) == 0 ? 3 : 5;
    const Tensor rows = Contiguous(Slice(Logits(), 0, begin, end));
    const Tensor targets = Contiguous(Slice(TargetsOf(golden), 0, begin, end));
    const Tensor logits = DistributeTensor(
        rows, tp, Layout::Replicated(tp.layout(), 2).WithShard(0, 1));
    CrossEntropyLossOptions options = OptionsOf(golden, Reduction::kMean);
    options.mean_over = fsdp;
    for (const Tensor& start : {rows, logits}) {
      const Tensor x = start.Detach().set_requires_grad(true);
      const Tensor loss = CrossEntropyLoss(x, targets, options);
      CH_ASSIGN_OR_RETURN(const double mean, MeanOverAxis(loss, fsdp));
      CH_EXPECT_NEAR(mean, golden.mean, kTolerance);
      CH_RETURN_IF_ERROR(Backward(loss));
      ExpectNear(Div(x.grad(), 2), {golden.gradient.begin() + begin * kClasses,
                                    golden.gradient.begin() + end * kClasses});
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Goldens, CrossEntropyLossTest,
                         ::testing::ValuesIn(Goldens()),
                         [](const auto& info) { return info.param.name; });

// All target classes have weight zero. With smoothing the other classes still
// add to the sum, of which only some ranks have a part.
TEST(CrossEntropyLossZeroWeightsTest, GivesNanOnAnyMesh) {
  for (const double smoothing : {0.0, 0.3}) {
    const auto loss = [&](const Tensor& logits,
                          std::optional<DeviceMesh> mean_over = std::nullopt) {
      return CrossEntropyLoss(
          logits, FromValues<int64_t>({kRows}, {2, 0, -100, 3, 2}),
          {.label_smoothing = smoothing,
           .class_weights = FromValues<double>({kClasses}, {0, 2, 0, 0}),
           .mean_over = std::move(mean_over)});
    };
    EXPECT_TRUE(std::isnan(loss(Logits()).ToVector<double>()[0]));
    OnMesh({{"dp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const Layout whole = Layout::Replicated(mesh.layout(), 2);
      for (const Layout& layout :
           {whole, whole.WithShard(0, 0), whole.WithShard(1, 1),
            whole.WithShard(0, 0).WithShard(1, 1)}) {
        const Tensor x =
            DistributeTensor(Logits(), mesh, layout).set_requires_grad(true);
        const Tensor mean = loss(x);
        CH_ASSIGN_OR_RETURN(const double value, Item(mean));
        CH_EXPECT_TRUE(std::isnan(value)) << layout.ToString();
        CH_RETURN_IF_ERROR(Backward(mean));
        CH_EXPECT_TRUE(std::isnan(FullTensor(x.grad()).ToVector<double>()[0]))
            << layout.ToString();
      }
      CH_ASSIGN_OR_RETURN(const DeviceMesh dp, mesh.Slice("dp"));
      CH_ASSIGN_OR_RETURN(const double value,
                          MeanOverAxis(loss(Logits(), dp), dp));
      CH_EXPECT_TRUE(std::isnan(value));
      return absl::OkStatus();
    });
  }
}

TEST(CrossEntropyLossTypesTest, TakesIndicesOfEachKindAndHalfFloats) {
  const Tensor weights = FromValues<float>({3}, {1, 2, 3});
  for (const DType dtype : {kInt32, kInt64, kUInt16}) {
    const Tensor targets = Full({2}, 1, dtype);
    const Tensor loss =
        CrossEntropyLoss(Zeros({2, 3}, kBFloat16), targets,
                         {.label_smoothing = 0.5, .class_weights = weights});
    EXPECT_EQ(loss.dtype(), kFloat32);
    // (0.5 * 2 + 0.5 / 3 * 6) log 3 per row, divided by weights of 2.
    EXPECT_NEAR(loss.ToVector<float>()[0], std::log(3.0), 1e-6);
  }
}

TEST(CrossEntropyLossTypesTest, OfOneRowOfIndicesWithoutDims) {
  const Tensor loss = CrossEntropyLoss(Zeros({3}), Full({}, 2, kInt64),
                                       {.label_smoothing = 0.5});
  EXPECT_NEAR(loss.ToVector<float>()[0], std::log(3.0), 1e-6);
}

TEST(CrossEntropyLossDeathTest, NamesWhatDoesNotFit) {
  const Tensor logits = Zeros({2, 3});
  const Tensor targets = Zeros({2}, kInt64);
  EXPECT_DEATH(CrossEntropyLoss(logits, targets, {.label_smoothing = 1.5}),
               "label_smoothing 1.5 is not in");
  EXPECT_DEATH(CrossEntropyLoss(logits, targets, {.class_weights = Zeros({2})}),
               "one weight for each class");
  EXPECT_DEATH(CrossEntropyLoss(logits, Zeros({2, 2})),
               "class probabilities are a constant of the logits' sizes");
}

TEST(MeanOverBatchTest, TakesSumsAndCountsOfEachType) {
  OnMesh({{"data", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    // The mean is (40000 + 40000) / (1 + 3). In float16 40000 * 2 is infinite.
    const int64_t rank = mesh.world().rank();
    const int64_t rows = 1 + 2 * rank;
    for (const DType dtype : {kBFloat16, kFloat16, kFloat32, kFloat64}) {
      const auto check = [&](const auto& count) {
        const Tensor sum = Full({}, 40000, dtype).set_requires_grad(true);
        const Tensor mean = MeanOverBatch(sum, count, mesh);
        CH_EXPECT_EQ(mean.dtype(), dtype);
        const double expected = sum.ToVector<double>()[0] / 2;
        CH_EXPECT_EQ(mean.ToVector<double>()[0], expected);
        CH_RETURN_IF_ERROR(Backward(mean));
        CH_EXPECT_EQ(sum.grad().dtype(), dtype);
        CH_EXPECT_EQ(sum.grad().ToVector<double>()[0], 0.5);
        return absl::OkStatus();
      };
      CH_RETURN_IF_ERROR(check(static_cast<double>(rows)));
      for (const DType of_count : {kFloat32, kFloat64, kInt64}) {
        CH_RETURN_IF_ERROR(
            check(Full({}, static_cast<double>(rows), of_count)));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
