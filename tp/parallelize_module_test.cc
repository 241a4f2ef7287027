// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallelize_module.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Tokens [B, T] to [B, T, 3] through an embedding and an MLP, with sizes that
// do not divide by two or three.
class Net final : public nn::Module {
 public:
  Net() {
    int64_t salt = 0;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
      Tensor(p->data()).set_requires_grad(true);
    }
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {down_.Forward(Relu(up_.Forward(embed_.Forward(inputs[0]))))};
  }

 private:
  nn::Embedding& embed_ = Make<nn::Embedding>("embed", 11, 5);
  nn::Linear& up_ = Make<nn::Linear>("up", {.in = 5, .out = 7, .bias = true});
  nn::Linear& down_ =
      Make<nn::Linear>("down", {.in = 7, .out = 3, .bias = true});
};

Tensor Tokens() {
  const std::vector<int32_t> ids = {0, 3, 10, 7, 7, 2, 9, 4, 1, 5};
  return FromValues<int32_t>({2, 5}, ids);
}

// The output, then the gradients of its sum.
using Values = std::vector<std::vector<float>>;

absl::StatusOr<Values> OutputAndGradients(Net& net) {
  const Tensor output = net.Forward(Tokens());
  Values values = {FullTensor(output).ToVector<float>()};
  CH_RETURN_IF_ERROR(Backward(Sum(output)));
  for (nn::Parameter* p : net.Parameters()) {
    values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return values;
}

TEST(ParallelizeModuleTest, MatchesOneRank) {
  Net dense;
  const Values expected = *OutputAndGradients(dense);
  const std::vector<std::pair<std::string, ParallelPlan>> plans = {
      {"rows of the table, columns then rows",
       {{"embed", RowwiseParallel()},
        {"up", ColwiseParallel()},
        {"down", RowwiseParallel()}}},
      {"split by position in between",
       {{"embed", RowwiseParallel({.output = Shard(1)})},
        {"up", ColwiseParallel({.input = Shard(1)})},
        {"down", RowwiseParallel({.output = Shard(1)})}}},
      {"columns of the table, gathered at the end",
       {{"embed", ColwiseParallel({.output = Replicate()})},
        {"up", ColwiseParallel({.output = Replicate()})},
        {"down", ColwiseParallel()}}},
      {"every weight on every rank, tokens split by position",
       {{"", PrepareModuleInput({.desired = Shard(1)})},
        {"embed", SequenceParallel(1)},
        {"up", SequenceParallel(1)},
        {"down", SequenceParallel(1)}}},
  };
  for (const auto& [name, plan] : plans) {
    for (const int ranks : {1, 2, 3}) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        Net net;
        CH_RETURN_IF_ERROR(ParallelizeModule(net, mesh, plan));
        CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(net));
        CH_EXPECT_EQ(values, expected) << name << " on " << ranks;
        return absl::OkStatus();
      });
    }
  }
}

TEST(ParallelizeModuleTest, ReturnsLocalOutputsIfRequested) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    nn::Linear linear(3, 5);
    linear.weight()->set_data(SmallIntegers({5, 3}, 1));
    CH_RETURN_IF_ERROR(ParallelizeModule(
        linear, mesh, {{"", ColwiseParallel({.use_local_output = true})}}));
    const Tensor out = linear.Forward(SmallIntegers({4, 3}, 2));
    CH_EXPECT_FALSE(out.is_distributed());
    CH_EXPECT_EQ(out.size(1), world.rank() == 0 ? 3 : 2);
    return absl::OkStatus();
  });
}

TEST(ParallelizeModuleTest, SplitsBetweenUnitsOnly) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    nn::Linear linear(3, 12);
    CH_RETURN_IF_ERROR(
        ParallelizeModule(linear, mesh, {{"", ColwiseParallel({.unit = 4})}}));
    CH_EXPECT_EQ(LocalTensor(linear.weight()->data()).size(0),
                 world.rank() == 0 ? 8 : 4);
    return absl::OkStatus();
  });
}

TEST(ParallelizeModuleTest, NamesMismatches) {
  OnMesh({{"dp", 1}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    Net net;
    const auto message = [&](const DeviceMesh& m, const ParallelPlan& plan) {
      return std::string(ParallelizeModule(net, m, plan).message());
    };
    CH_EXPECT_THAT(message(mesh, {}), HasSubstr("not mesh(dp=1, tp=2)"));
    CH_EXPECT_THAT(message(tp, {{"upp", ColwiseParallel()}}),
                   HasSubstr("\"upp\" for ColwiseParallel matches no module"));
    CH_EXPECT_THAT(message(tp, {{"", RowwiseParallel()}}),
                   HasSubstr("it fits nn::Linear and nn::Embedding"));
    // The errors above left the model unchanged.
    CH_EXPECT_FALSE(net.Parameters()[0]->data().is_distributed());
    CH_EXPECT_THAT(
        message(tp, {{"u*", ColwiseParallel()}, {"up", RowwiseParallel()}}),
        HasSubstr("module \"up\" is matched by \"u*\" for ColwiseParallel and "
                  "by \"up\" for RowwiseParallel"));
    CH_EXPECT_THAT(
        message(tp, {{"up", Combined({ColwiseParallel(), RowwiseParallel()})}}),
        HasSubstr("parameter up.weight is distributed as [S(0)] already"));
    CH_RETURN_IF_ERROR(
        ParallelizeModule(net, tp, {{"down", RowwiseParallel()}}));
    CH_EXPECT_THAT(message(tp, {{"d*", ColwiseParallel()}}),
                   HasSubstr("module \"down\" has RowwiseParallel already, and "
                             "the pattern \"d*\" gives it ColwiseParallel"));
    return absl::OkStatus();
  });
}

TEST(ParallelizeModuleTest, NamesUnitsThatDoNotDivide) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto message = [&](const Style& style) {
      Net net;
      const absl::Status status = ParallelizeModule(net, mesh, {{"up", style}});
      CH_EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      CH_EXPECT_FALSE(net.Parameters()[0]->data().is_distributed());
      return std::string(status.message());
    };
    CH_EXPECT_EQ(message(ColwiseParallel({.unit = 4})),
                 "ColwiseParallel of module \"up\" (Linear): unit 4 does not "
                 "divide the 7 output features");
    CH_EXPECT_THAT(message(RowwiseParallel({.unit = 3})),
                   HasSubstr("unit 3 does not divide the 5 input features"));
    CH_EXPECT_THAT(message(ColwiseParallel({.unit = 0})),
                   HasSubstr("unit 0 does not divide"));
    CH_EXPECT_THAT(message(ColwiseParallel({.unit = 7, .subunit = 2})),
                   HasSubstr("subunit 2 does not divide the unit 7"));
    CH_EXPECT_THAT(message(ColwiseParallel({.query_heads = 3})),
                   HasSubstr("the 7 units do not divide the 3 query_heads"));
    CH_EXPECT_THAT(message(nullptr), HasSubstr("\"up\" has a null style"));
    CH_EXPECT_THAT(message(Combined({nullptr})),
                   HasSubstr("Combined for module \"up\" holds a null style"));
    nn::Embedding table(5, 4);
    CH_EXPECT_THAT(
        std::string(
            ParallelizeModule(table, mesh, {{"", ColwiseParallel({.unit = 2})}})
                .message()),
        HasSubstr("units are for nn::Linear"));
    return absl::OkStatus();
  });
}

// The projections of an attention with `heads` query heads of width 2 and two
// key heads.
class Attention final : public nn::Module {
 public:
  explicit Attention(int64_t heads) : heads_(heads) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override { return {inputs[0]}; }

 private:
  const int64_t heads_;
  nn::Linear& q_ = Make<nn::Linear>("q", 4, 2 * heads_);
  nn::Linear& k_ = Make<nn::Linear>("k", 4, 4);
  nn::Linear& out_ = Make<nn::Linear>("out", 2 * heads_, 4);
};

TEST(ParallelizeModuleTest, ChecksTheHeadsOfLocalOutputsAgainstEachOther) {
  OnMesh({{"tp", 4}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto lay_out = [&](const ColwiseOptions& q, const ColwiseOptions& k,
                             const RowwiseOptions& out) {
      Attention attention(/*heads=*/8);
      return ParallelizeModule(attention, mesh,
                               {{"q*", ColwiseParallel(q)},
                                {"k", ColwiseParallel(k)},
                                {"o*", RowwiseParallel(out)}});
    };
    const ColwiseOptions q = {
        .use_local_output = true, .unit = 8, .subunit = 2};
    const ColwiseOptions k = {
        .use_local_output = true, .unit = 2, .query_heads = 8};
    const RowwiseOptions out = {.unit = 8, .subunit = 2};
    CH_RETURN_IF_ERROR(lay_out(q, k, out));
    // Four even shards are of whole heads, whatever their units.
    CH_RETURN_IF_ERROR(lay_out({.use_local_output = true}, k, {.unit = 2}));
    // DTensors are redistributed.
    CH_RETURN_IF_ERROR(
        lay_out({.unit = 8}, {.unit = 2, .query_heads = 8}, {.unit = 8}));
    const auto expect_refused = [](const absl::Status& status,
                                   const std::string& entry,
                                   const std::string& cure) {
      CH_EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      CH_EXPECT_THAT(std::string(status.message()),
                     AllOf(HasSubstr("\"k\" for module \"k\" (ColwiseParallel, "
                                     "query_heads=8)"),
                           HasSubstr(entry), HasSubstr(cure)));
    };
    expect_refused(lay_out({.use_local_output = true, .unit = 8}, k, out),
                   "\"q*\" for module \"q\"", "set its subunit to 2");
    expect_refused(lay_out(q, k, {.unit = 8}), "\"o*\" for module \"out\"",
                   "set its subunit to 2");
    expect_refused(
        lay_out(q, {.use_local_output = true, .unit = 4, .query_heads = 8},
                out),
        "\"q*\" for module \"q\" has heads of width 2", "set unit to 2");
    return absl::OkStatus();
  });
}

TEST(ParallelizeModuleTest, TakesTheValuesOfOneRank) {
  Net dense;
  const Values expected = *OutputAndGradients(dense);
  const ParallelPlan plan = {{"embed", RowwiseParallel()},
                             {"up", ColwiseParallel()},
                             {"down", RowwiseParallel()}};
  for (const int source : {0, 2}) {
    OnMesh({{"tp", 3}}, [&](const DeviceMesh& mesh) -> absl::Status {
      Net net;
      if (*mesh.index(0) != source) {
        for (nn::Parameter* p : net.Parameters()) {
          p->set_data(SmallIntegers(p->data().sizes(), 17 + *mesh.index(0)));
        }
      }
      CH_RETURN_IF_ERROR(
          ParallelizeModule(net, mesh, plan, {.source_rank = source}));
      CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(net));
      CH_EXPECT_EQ(values, expected);
      // The other ranks need no memory for their own values.
      for (const bool right : {true, false}) {
        nn::Linear read(3, 5);
        read.NamedParameters();
        if ((*mesh.index(0) == source) == right) {
          read.weight()->set_data(SmallIntegers({5, 3}, 9));
        }
        const absl::Status laid = ParallelizeModule(
            read, mesh, {{"", ColwiseParallel()}}, {.source_rank = source});
        if (right) {
          CH_RETURN_IF_ERROR(laid);
          CH_EXPECT_EQ(FullTensor(read.weight()->data()).ToVector<float>(),
                       SmallIntegers({5, 3}, 9).ToVector<float>());
        } else {
          CH_EXPECT_THAT(std::string(laid.message()),
                         HasSubstr("parameter weight has memory on rank"));
        }
      }
      // Parameters without memory are filled by their seed.
      nn::Linear deferred(3, 5);
      CH_RETURN_IF_ERROR(ParallelizeModule(
          deferred, mesh, {{"", ColwiseParallel()}}, {.source_rank = source}));
      CH_RETURN_IF_ERROR(deferred.Materialize({}));
      Net other;
      CH_EXPECT_THAT(
          std::string(ParallelizeModule(other, mesh, plan, {.source_rank = 3})
                          .message()),
          HasSubstr("source_rank 3 of mesh(tp=3)"));
      return absl::OkStatus();
    });
  }
}

// Modules of a program with the type names of ours.
class NamedLikeOurs final : public nn::Module {
 public:
  explicit NamedLikeOurs(const char* name) : name_(name) {
    RegisterParameter("weight", std::make_shared<nn::Parameter>(
                                    Shape{4, 4}, kFloat32, nn::Initializer{}));
  }
  const char* type_name() const override { return name_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override { return {inputs[0]}; }

 private:
  const char* name_;
};

TEST(ParallelizeModuleTest, MatchesTypesRatherThanNames) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    for (const char* name : {"Linear", "Embedding"}) {
      for (const Style& style : {ColwiseParallel(), RowwiseParallel()}) {
        NamedLikeOurs module(name);
        const absl::Status refused =
            ParallelizeModule(module, mesh, {{"", style}});
        CH_EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
        CH_EXPECT_THAT(std::string(refused.message()),
                       HasSubstr(std::string("(") + name +
                                 "): it fits nn::Linear and nn::Embedding"));
        CH_EXPECT_FALSE(module.Parameters()[0]->data().is_distributed());
      }
    }
    return absl::OkStatus();
  });
}

// Returns the output of ColwiseParallel, then RowwiseParallel, and the
// gradients of its sum.
absl::StatusOr<std::vector<std::vector<float>>> ColumnsThenRows(
    nn::Linear& up, nn::Linear& down) {
  const Tensor x = SmallIntegers({3, 4}, 3).set_requires_grad(true);
  const Tensor y = down.Forward(Relu(up.Forward(x)));
  CH_RETURN_IF_ERROR(Backward(Sum(y)));
  std::vector<std::vector<float>> values;
  for (const Tensor& t :
       {y, x.grad(), up.weight()->grad(), down.weight()->grad()}) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
}

// The number of units, of features, and of ranks.
using UnitsCase = std::tuple<int64_t, int64_t, int>;

class LocalInputsTest : public testing::TestWithParam<UnitsCase> {};

// The units do not divide by the ranks, and each rank's own columns are a plain
// tensor in between.
TEST_P(LocalInputsTest, AreTakenInUnits) {
  const auto& [units, unit, ranks] = GetParam();
  const int64_t inner = units * unit;
  const auto fill = [inner = inner](nn::Linear& up, nn::Linear& down) {
    up.weight()->set_data(SmallIntegers({inner, 4}, 1));
    down.weight()->set_data(SmallIntegers({5, inner}, 2));
  };
  nn::Linear one_up(4, inner);
  nn::Linear one_down(inner, 5);
  fill(one_up, one_down);
  const auto expected = ColumnsThenRows(one_up, one_down);
  ASSERT_TRUE(expected.ok()) << expected.status();
  OnMesh(
      {{"tp", ranks}},
      [&, unit = unit](const DeviceMesh& mesh) -> absl::Status {
        nn::Linear up(4, inner);
        nn::Linear down(inner, 5);
        fill(up, down);
        CH_RETURN_IF_ERROR(ParallelizeModule(
            up, mesh,
            {{"", ColwiseParallel({.use_local_output = true, .unit = unit})}}));
        CH_RETURN_IF_ERROR(ParallelizeModule(
            down, mesh, {{"", RowwiseParallel({.unit = unit})}}));
        CH_ASSIGN_OR_RETURN(const auto values, ColumnsThenRows(up, down));
        CH_EXPECT_EQ(values, *expected);
        return absl::OkStatus();
      });
}

std::string NameOfCase(const testing::TestParamInfo<UnitsCase>& info) {
  const auto& [units, unit, ranks] = info.param;
  return absl::StrCat(units, "_units_of_", unit, "_on_", ranks);
}

INSTANTIATE_TEST_SUITE_P(Units, LocalInputsTest,
                         testing::Combine(testing::Values<int64_t>(0, 1, 2, 3,
                                                                   5),
                                          testing::Values<int64_t>(1, 2, 4),
                                          testing::Values(1, 2, 3, 4)),
                         NameOfCase);

}  // namespace
}  // namespace crosshatch::tp
