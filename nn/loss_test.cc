// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/loss.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/implicit_redistribution.h"
#include "crosshatch/dtensor/item.h"
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
  std::vector<double> gradient;  // Of the mean.
};

const std::vector<Golden>& Goldens() {
  static const std::vector<Golden> goldens = {
      {"indices",
       false,
       false,
       0,
       {3.9488386, 2.83828428, 0, 3.1988386, 0.545629344},
       10.5315908,
       2.6328977,
       {0.0753860559,
        0.159592282,
        -0.245180731,
        0.0102023932,
        -0.235368502,
        0.0309748825,
        0.0655738267,
        0.138819792,
        0,
        0,
        0,
        0,
        0.0753860559,
        0.159592282,
        0.00481926932,
        -0.239797607,
        0.0323246977,
        0.0684313856,
        -0.105130755,
        0.00437467212}},
      {"indices_smoothed",
       false,
       false,
       0.3,
       {3.4238386, 2.50078428, 0, 2.8988386, 0.976879344},
       9.80034082,
       2.4500852,
       {0.0566360559,
        0.140842282,
        -0.188930731,
        -0.00854760677,
        -0.179118502,
        0.0122248825,
        0.0468238267,
        0.120069792,
        0,
        0,
        0,
        0,
        0.0566360559,
        0.140842282,
        -0.0139307307,
        -0.183547607,
        0.0135746977,
        0.0496813856,
        -0.0488807555,
        -0.0143753279}},
      {"indices_weighted",
       false,
       true,
       0,
       {3.9488386, 1.41914214, 0, 0.799709649, 0.545629344},
       6.71331973,
       2.44120717,
       {0.109652445,
        0.232134228,
        -0.356626517,
        0.0148398447,
        -0.171177092,
        0.0225271873,
        0.0476900558,
        0.100959849,
        0,
        0,
        0,
        0,
        0.0274131112,
        0.0580335569,
        0.00175246157,
        -0.0871991297,
        0.0470177422,
        0.0995365609,
        -0.152917463,
        0.00636315945}},
      {"indices_weighted_smoothed",
       false,
       true,
       0.3,
       {3.23261037, 1.52447945, 0, 1.02822011, 0.769773794},
       6.55508373,
       2.38366681,
       {0.0939600979,
        0.173236256,
        -0.27493977,
        0.00774341579,
        -0.127474715,
        -0.0261048806,
        0.0329359682,
        0.120643627,
        0,
        0,
        0,
        0,
        0.0363925644,
        0.0513657869,
        -0.0240744849,
        -0.0636838663,
        0.0324997959,
        0.0431247959,
        -0.0750502601,
        -0.000574331607}},
      {"probabilities",
       true,
       false,
       0,
       {5.06671754, 1.76660536, 2.73721196, 2.16119342, 2.31844402},
       14.0501723,
       2.81003446,
       {0.0305404782,  0.198429194,   -0.143253023,  -0.0857166495,
        -0.0353685015, 0.0309748825,  -0.0594261733, 0.0638197923,
        -0.005979052,  -0.109732653,  -0.0147540252, 0.13046573,
        0.0678474503,  0.0186330534,  -0.0706626576, -0.0158178461,
        -0.111210363,  -0.0178823372, 0.123843093,   0.00524960655}},
      {"probabilities_smoothed",
       true,
       false,
       0.3,
       {4.20635386, 1.75060903, 2.43003366, 2.17248697, 2.21784961},
       12.7773331,
       2.55546663,
       {0.0244709882,  0.162202584,   -0.114120491,   -0.0725530803,
        -0.0362463914, 0.0141163895,  -0.0408606029,  0.0629906048,
        -0.0156737768, -0.0843788851, -0.00959009925, 0.109642761,
        0.0505858686,  0.036345285,   -0.0633072357,  -0.0236239179,
        -0.0850893265, -0.0110941035, 0.106458784,    -0.0102753541}},
      {"probabilities_weighted",
       true,
       true,
       0,
       {3.69847566, 1.24636486, 4.0157291, 2.14182642, 2.19914768},
       13.3015437,
       2.66030875,
       {0.0416553587,  0.117571896,   -0.144939767,  -0.0142874871,
        -0.0151237385, 0.0209080457,  -0.0807376669, 0.0749533598,
        0.0123735474,  -0.2473427,    0.0114755055,  0.223493647,
        0.0998865241,  -0.0385402269, -0.0686144682, 0.00726817102,
        -0.032977893,  -0.111039199,  0.138330018,   0.00568707376}},
      {"probabilities_weighted_smoothed",
       true,
       true,
       0.3,
       {3.05735631, 1.40353536, 3.34209033, 1.96770185, 1.92723663},
       11.6979205,
       2.3395841,
       {0.0386206137,  0.0882085903,   -0.115373501,  -0.0114557025,
        -0.0147945298, -0.00839501946, -0.0567622558, 0.0799518051,
        0.00445357032, -0.196170541,   0.00778696484, 0.183930006,
        0.0793824294,  -0.0210698955,  -0.0619457921, 0.00363325819,
        -0.0233114681, -0.0923303773,  0.114426593,   0.00121525286}},
  };
  return goldens;
}

// The values above have nine digits.
constexpr double kTolerance = 2e-8;

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

class CrossEntropyLossTest : public ::testing::TestWithParam<Golden> {
 protected:
  // All reductions, and the gradient of the mean.
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

// Rows, classes or both are split, or nothing is; 5 rows and 4 classes on 2 and
// 3 ranks.
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
        // Targets that lie as the rows do.
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

// The batch is split over fsdp as plain tensors: 3 rows and 2, of which one is
// ignored. The mean is that of all rows, on every rank, and gradients are those
// that FullyShard divides.
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

TEST(CrossEntropyLossTypesTest, TakesIndicesOfEachKindAndHalfFloats) {
  const Tensor weights = FromValues<float>({3}, {1, 2, 3});
  for (const DType dtype : {kInt32, kInt64, kUInt16}) {
    const Tensor targets = Full({2}, 1, dtype);
    const Tensor loss =
        CrossEntropyLoss(Zeros({2, 3}, kBFloat16), targets,
                         {.label_smoothing = 0.5, .class_weights = weights});
    EXPECT_EQ(loss.dtype(), kFloat32);
    // (0.5 * 2 + 0.5 / 3 * 6) log 3 for each row, over weights of 2.
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

}  // namespace
}  // namespace crosshatch::nn
