// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/loss.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
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
const std::vector<double> kWeights = {0.5, 2, 1, 0.25};

// The values of PyTorch 2.15 in float64, with
//   x = [((i * 37 + 11) % 17 - 8) / 4 for i in range(20)] as [5, 4]
//   t = [2, 0, -100, 3, 2], w = [0.5, 2, 1, 0.25]
//   p = [((i * 5 + 3) % 7) / 8 for i in range(20)] as [5, 4]
//   F.cross_entropy(x, t or p, weight=w, label_smoothing=0.3, reduction=...)
struct Golden {
  const char* name;
  bool probabilities;
  bool weighted;
  double smoothing;
  double sum;   ///< Of the losses of the rows.
  double mean;  ///< By Reduction::kMean.
  /// Sums of squares of the losses and of the gradient of the mean.
  double squares;
  double gradient_squares;
};

constexpr Golden kGoldens[] = {
    {"indices", false, false, 0, 10.53159081856, 2.63289770464, 34.1794636665,
     0.276777295092},
    {"indices_smoothed", false, false, 0.3, 9.80034081856, 2.45008520464,
     27.3341512147, 0.16983065592},
    {"indices_weighted", false, true, 0, 6.713319730172, 2.441207174608,
     18.5445375733, 0.282857522686},
    {"indices_weighted_smoothed", false, true, 0.3, 6.555083728841,
     2.383666810487, 14.4235957069, 0.164209003466},
    {"probabilities", true, false, 0, 14.05017229408, 2.810034458817,
     46.3307901021, 0.145552516366},
    {"probabilities_smoothed", true, false, 0.3, 12.77733313666, 2.555466627331,
     36.3016649029, 0.0990735241444},
    {"probabilities_weighted", true, true, 0, 13.30154373204, 2.660308746408,
     40.7818987537, 0.209793272104},
    {"probabilities_weighted_smoothed", true, true, 0.3, 11.69792048505,
     2.33958409701, 30.0729985071, 0.137771021337},
};

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

// The definition, by q_c = w_c p_c with smoothed p: a row's loss is the sum
// over c of q_c (lse - x_c).
struct Expected {
  explicit Expected(const Golden& golden) {
    const std::vector<double> x = Logits().ToVector<double>();
    const std::vector<double> targets = TargetsOf(golden).ToVector<double>();
    const std::vector<double> weights =
        golden.weighted ? kWeights : std::vector<double>(kClasses, 1);
    double divisor = 0;
    for (size_t row = 0; row < kRows; ++row) {
      const double* const of_row = x.data() + row * kClasses;
      double exponentials = 0;
      double all = 0;  // The sum of q.
      std::vector<double> q(kClasses);
      for (size_t c = 0; c < kClasses; ++c) {
        exponentials += std::exp(of_row[c]);
        if (!golden.probabilities && targets[row] < 0) continue;  // Ignored.
        const double p = golden.probabilities
                             ? targets[row * kClasses + c]
                             : static_cast<double>(targets[row] == double(c));
        q[c] = weights[c] *
               ((1 - golden.smoothing) * p + golden.smoothing / kClasses);
        all += q[c];
        if (!golden.probabilities) divisor += p * weights[c];
      }
      if (golden.probabilities) divisor += 1;
      double loss = 0;
      for (size_t c = 0; c < kClasses; ++c) {
        loss += q[c] * (std::log(exponentials) - of_row[c]);
        gradient.push_back(std::exp(of_row[c]) / exponentials * all - q[c]);
      }
      losses.push_back(loss);
    }
    for (double& g : gradient) g /= divisor;
    mean = std::accumulate(losses.begin(), losses.end(), 0.0) / divisor;
  }

  std::vector<double> losses;
  std::vector<double> gradient;  ///< Of the mean.
  double mean = 0;
};

CrossEntropyLossOptions OptionsOf(const Golden& golden, Reduction reduction) {
  CrossEntropyLossOptions options;
  options.reduction = reduction;
  options.label_smoothing = golden.smoothing;
  if (golden.weighted) {
    options.class_weights = FromValues<double>({kClasses}, kWeights);
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
    const Expected expected(golden);
    const Tensor x = logits.Detach().set_requires_grad(true);
    const ForbidImplicitRedistribution forbid;
    ExpectNear(
        CrossEntropyLoss(x, targets, OptionsOf(golden, Reduction::kNone)),
        expected.losses);
    ExpectNear(CrossEntropyLoss(x, targets, OptionsOf(golden, Reduction::kSum)),
               {golden.sum});
    const Tensor mean =
        CrossEntropyLoss(x, targets, OptionsOf(golden, Reduction::kMean));
    ExpectNear(mean, {golden.mean});
    CH_RETURN_IF_ERROR(Backward(mean));
    ExpectNear(x.grad(), expected.gradient);
    return absl::OkStatus();
  }
};

TEST_P(CrossEntropyLossTest, IsPyTorchs) {
  const Golden& golden = GetParam();
  const Expected expected(golden);
  const auto squares_of = [](const std::vector<double>& values) {
    return std::inner_product(values.begin(), values.end(), values.begin(),
                              0.0);
  };
  EXPECT_NEAR(expected.mean, golden.mean, kTolerance);
  EXPECT_NEAR(squares_of(expected.losses), golden.squares, 60 * kTolerance);
  EXPECT_NEAR(squares_of(expected.gradient), golden.gradient_squares,
              kTolerance);
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
      const Expected expected(golden);
      ExpectNear(Div(x.grad(), 2),
                 {expected.gradient.begin() + begin * kClasses,
                  expected.gradient.begin() + end * kClasses});
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Goldens, CrossEntropyLossTest,
                         ::testing::ValuesIn(kGoldens),
                         [](const auto& info) { return info.param.name; });

// All target classes have weight zero. With smoothing the other classes still
// add to the sum, of which only some ranks have a part.
TEST(CrossEntropyLossZeroWeightsTest, IsNanOnAnyMesh) {
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

TEST(CrossEntropyLossDeathTest, NamesMismatchedShapes) {
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
