// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/comm_report.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

// [2, 4] to [2, 4] by 6 hidden units.
class Mlp final : public Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {down_.Forward(Relu(up_.Forward(inputs[0])))};
  }

 private:
  Linear& up_ = Make<Linear>("up", 4, 6);
  Linear& down_ = Make<Linear>("down", 6, 4);
};

// A layer, then the MLP twice: its second input is an Exp, which needs the sum.
class Net final : public Module {
 public:
  Net() {
    for (Parameter* p : Parameters()) {
      Tensor values = Full(p->data().sizes(), 0.125);
      values.set_requires_grad(true);
      p->set_data(values);
    }
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor hidden = mlp_.Forward(first_.Forward(inputs[0]));
    return {mlp_.Forward(Exp(hidden))};
  }

 private:
  Linear& first_ = Make<Linear>("first", 4, 4);
  Mlp& mlp_ = Make<Mlp>("mlp");
};

absl::Status SplitHidden(const std::string& name, Module& module,
                         const DeviceMesh& mesh) {
  if (name != "mlp.up" && name != "mlp.down") return absl::OkStatus();
  return DistributeParameter(*static_cast<Linear&>(module).weight(), mesh,
                             Layout::Replicated(mesh.layout(), 2)
                                 .WithShard(0, name == "mlp.up" ? 0 : 1));
}

class Counter final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    if (event.kind == EventKind::kCollective) ++collectives;
  }
  int collectives = 0;
};

// Runs `check` on two ranks with the net distributed over them.
void OnTwoRanks(
    const std::function<absl::Status(World&, const DeviceMesh&, Net&)>& check,
    const JobOptions& options = {}) {
  OnMesh(
      {{"tp", 2}},
      [&](const DeviceMesh& mesh) -> absl::Status {
        World& world = mesh.world();
        Net net;
        CH_RETURN_IF_ERROR(
            DistributeModule(net, mesh, {.partition = SplitHidden}));
        return check(world, mesh, net);
      },
      options);
}

int64_t BytesReceived(World& world) {
  int64_t bytes = 0;
  for (const auto& group : world.groups()) {
    for (const auto& count : group->stats().by_kind) bytes += count.bytes;
  }
  return bytes;
}

TEST(CommReport, NamesTheModuleAndOp) {
  OnTwoRanks([](World& world, const DeviceMesh& mesh,
                Net& net) -> absl::Status {
    const Tensor x = Replicated(Full({2, 4}, 0.5), mesh);
    const int64_t before = BytesReceived(world);
    CommReport report(net);
    const Tensor output = net.Forward(x);
    const Layout whole = Layout::Replicated(mesh.layout(), 2);
    const Tensor sum = Sum(Redistribute(output, whole));
    CH_EXPECT_EQ(report.ToString(),
                 "2 collectives, 64 bytes\n"
                 "(root): 1 collective, 32 bytes\n"
                 "  forward   implicit exp: all_reduce over tp: 1 collective, "
                 "32 bytes\n"
                 "(outside): 1 collective, 32 bytes\n"
                 "  forward   explicit redistribute: all_reduce over tp: "
                 "1 collective, 32 bytes\n");
    report.Reset();
    CH_RETURN_IF_ERROR(Backward(sum));
    // Exp's sum is a collective in backward, too, before each of the two
    // matmuls for the gradients of `down` and its input.
    CH_EXPECT_EQ(report.ToString(),
                 "3 collectives, 128 bytes\n"
                 "(root): 3 collectives, 128 bytes\n"
                 "first: 1 collective, 64 bytes\n"
                 "  backward  op gradient: all_reduce over tp: "
                 "1 collective, 64 bytes\n"
                 "mlp: 2 collectives, 64 bytes\n"
                 "mlp.down: 2 collectives, 64 bytes\n"
                 "  backward  implicit matmul: all_reduce over tp: "
                 "2 collectives, 64 bytes\n");
    CH_EXPECT_EQ(report.Total().bytes + 64, BytesReceived(world) - before);
    return absl::OkStatus();
  });
}

TEST(CommReport, SumsByModuleCauseAndCollective) {
  OnTwoRanks([](World&, const DeviceMesh& mesh, Net& net) -> absl::Status {
    const Tensor x = Replicated(Full({2, 4}, 0.5), mesh);
    CommReport report(net);
    {
      NoGrad no_grad;
      net.Forward(x);
      net.Forward(x);
      FullTensor(net.Forward(x));
    }
    CH_EXPECT_EQ(report.Total().collectives, 4);
    CH_EXPECT_EQ(report.InModule("").collectives, 3);
    CH_EXPECT_EQ(report.InModule("mlp").collectives, 0);
    CH_EXPECT_EQ(report.InModule("ml").collectives, 0);
    CH_EXPECT_EQ(report.ByCause().at("exp").collectives, 3);
    CH_EXPECT_EQ(report.ByCause().at("redistribute").bytes, 32);
    CH_EXPECT_EQ(report.ByCollective().at("all_reduce").bytes, 4 * 32);
    CH_EXPECT_EQ(report.entries().size(), 2u);
    return absl::OkStatus();
  });
}

TEST(CommReport, CountsForTheModuleThatRuns) {
  OnTwoRanks([](World&, const DeviceMesh& mesh, Net& net) -> absl::Status {
    // The communication of a submodule.
    Module& mlp = *net.NamedModules()[2].module;
    CH_EXPECT_EQ(mlp.FullName(), "mlp");
    const int hook =
        mlp.AddPostHook([](Module&, TensorSpan, TensorList& outputs) {
          outputs[0] = Exp(outputs[0]);
        });
    CommReport report(net);
    NoGrad no_grad;
    net.Forward(Replicated(Full({2, 4}, 0.5), mesh));
    CH_EXPECT_EQ(report.InModule("mlp").collectives, 2);
    CH_EXPECT_EQ(report.InModule("").collectives, 2);
    CH_EXPECT_EQ(report.entries()[0].module, "mlp");
    mlp.RemoveHook(hook);
    return absl::OkStatus();
  });
}

TEST(CommReport, OutlivesItsModules) {
  RunRanks(2, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"tp", 2}}));
    auto net = std::make_unique<Net>();
    CH_RETURN_IF_ERROR(
        DistributeModule(*net, mesh, {.partition = SplitHidden}));
    CH_RETURN_IF_ERROR(net->Materialize({}));
    const CommReport report(*net);
    const Tensor loss = Sum(net->Forward(Replicated(Full({2, 4}, 0.5), mesh)));
    net.reset();
    CH_RETURN_IF_ERROR(Backward(loss));
    CH_EXPECT_GT(report.Total().collectives, 0);
    return absl::OkStatus();
  });
}

TEST(CommReport, NestsAndPassesEventsOn) {
  Counter counters[2];
  OnTwoRanks(
      [&](World& world, const DeviceMesh& mesh, Net& net) -> absl::Status {
        const Tensor x = Replicated(Full({2, 4}, 0.5), mesh);
        NoGrad no_grad;
        const int before = counters[world.rank()].collectives;
        CommReport outer(net);
        net.Forward(x);
        {
          CommReport inner(net);
          net.Forward(x);
          CH_EXPECT_EQ(inner.Total().collectives, 1);
        }
        net.Forward(x);
        CH_EXPECT_EQ(outer.Total().collectives, 3);
        CH_EXPECT_EQ(counters[world.rank()].collectives - before, 3);
        return absl::OkStatus();
      },
      {.sinks = {&counters[0], &counters[1]}});
}

}  // namespace
}  // namespace crosshatch::nn
