// SPDX-License-Identifier: Apache-2.0

/// \file
/// Programs with faults that VerifyStep must find, each with its
/// counterexample.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/optim/lion.h"
#include "crosshatch/nn/optim/sgd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tests/verified_step_testutil.h"
#include "crosshatch/verify/verify_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::verify {
namespace {

using FindingKind = Finding::Kind;
using testing::HasSubstr;

/// A program with a fault.
struct ProgramFault {
  std::string name;
  FindingKind kind;
  std::string text;
  Training training;
  VerifyOptions options = {};
};

std::vector<ProgramFault> ProgramFaults() {
  std::vector<ProgramFault> faults;
  const std::vector<MeshAxis> with_tp = {{"fsdp", 2}, {"tp", 2}};
  {
    Training t;
    t.options.reduction.divide_factor = 2;
    faults.push_back({"a divisor of some of the ranks", FindingKind::kGradient,
                      "but the divisor is 4", t});
  }
  {
    Training t = {.axes = with_tp, .sharded_over = {"tp"}};
    t.options.reduction.divide_factor = 2;
    faults.push_back({"gradients summed over tp instead of fsdp",
                      FindingKind::kGradient, "one reduction over fsdp", t});
  }
  {
    Training t = {.axes = {{"fsdp", 4}}, .sharded_over = {"fsdp"}};
    t.custom = std::make_shared<fsdp::CustomComm>();
    t.custom->reduce_scatter = [](Communicator&, Collective, Stream&) {
      return absl::OkStatus();
    };
    faults.push_back({"a reduction that moves nothing", FindingKind::kGradient,
                      "nothing was written to", t});
  }
  {
    Training t = {.axes = {{"fsdp", 4}}, .sharded_over = {"fsdp"}};
    t.custom = std::make_shared<fsdp::CustomComm>();
    t.custom->reduce_scatter = [](Communicator& comm, Collective collective,
                                  Stream& stream) -> absl::Status {
      Collective again{.kind = CollectiveKind::kAllReduce, .label = "again"};
      again.send = {collective.recv[0]};
      again.recv = again.send;
      CH_RETURN_IF_ERROR(comm.Issue(std::move(collective), stream));
      return comm.Issue(std::move(again), stream);
    };
    faults.push_back({"gradients reduced twice", FindingKind::kGradient,
                      "is in the sum 4 times", t});
  }
  {
    Training t = {.microbatches = 2};
    t.before_step = [](nn::Module& model, const DeviceMesh&, int step) {
      NoGrad no_grad;
      if (step == 1) {
        MulInPlace(LocalTensor(model.Parameters()[0]->grad()), 0.5);
      }
      return absl::OkStatus();
    };
    faults.push_back({"one gradient divided again", FindingKind::kGradient,
                      "parts that differ", t});
  }
  {
    Training t = {.axes = {{"fsdp", 4}}, .sharded_over = {"fsdp"}};
    t.custom = std::make_shared<fsdp::CustomComm>();
    t.custom->reduce_scatter = [](Communicator& comm, Collective collective,
                                  Stream& stream) {
      collective.reduce_op = ReduceOp::kMax;
      return comm.Issue(std::move(collective), stream);
    };
    faults.push_back({"gradients reduced by their maximum",
                      FindingKind::kGradient, "reduced by max", t});
  }
  {
    Training t;
    t.before_step = [](nn::Module& model, const DeviceMesh&, int) {
      NoGrad no_grad;
      for (nn::Parameter* p : model.Parameters()) p->set_grad(p->grad() * 0.25);
      return absl::OkStatus();
    };
    faults.push_back({"gradients replaced by a quarter of them",
                      FindingKind::kGradient, "but the divisor is 4", t});
  }
  {
    Training t = {.axes = {{"fsdp", 2}}, .sharded_over = {"fsdp"}};
    t.before_step = [](nn::Module&, const DeviceMesh& mesh, int step) {
      if (step != 1 || mesh.world().rank() != 1) return absl::OkStatus();
      return Barrier(**mesh.communicator(0, "fsdp_all_gather"),
                     RankContext::Current().SideStream("fsdp_all_gather"),
                     "only on rank 1");
    };
    faults.push_back({"a collective on one rank", FindingKind::kMismatch,
                      "only on rank 1", t});
  }
  {
    Training t;
    t.before_step = [](nn::Module&, const DeviceMesh&, int) {
      static std::vector<Tensor>& leaked = *new std::vector<Tensor>;
      leaked.push_back(Zeros({7}, kFloat32));
      return absl::OkStatus();
    };
    faults.push_back({"tensors that outlive the program", FindingKind::kLeak,
                      "28 bytes", t});
  }
  {
    Training t;
    t.before_step = [](nn::Module&, const DeviceMesh&, int) {
      Stream& side = RankContext::Current().SideStream("side");
      const Tensor x = Zeros({5}, kFloat32);
      side.Wait(RankContext::Current().compute_stream().Record());
      const StreamScope on_side(side);
      FillInPlace(x, 1);  // And `x` is freed, of another stream.
      return absl::OkStatus();
    };
    faults.push_back({"memory freed while another stream uses it",
                      FindingKind::kLifetime, "UsedOn(side)", t});
  }
  {
    Training t;
    t.before_step = [](nn::Module&, const DeviceMesh&, int) {
      Stream& side = RankContext::Current().SideStream("side");
      Tensor x = Zeros({5}, kFloat32);
      side.Wait(RankContext::Current().compute_stream().Record());
      {
        const StreamScope on_side(side);
        FillInPlace(x, 1);
      }
      x.storage()->block().UsedOn(side);
      FillInPlace(x, 2);
      return absl::OkStatus();
    };
    faults.push_back({"two streams that write without order",
                      FindingKind::kRace, "fill", t});
  }
  const auto on_rank_1 = [&](const std::string& name, const std::string& text,
                             std::function<void(Training&)> change) {
    faults.push_back(
        {name, FindingKind::kMismatch, text, {.change = std::move(change)}});
  };
  on_rank_1("fewer steps on one rank", "issues only",
            [](Training& t) { t.steps = 2; });
  on_rank_1("more steps on one rank", "issues only",
            [](Training& t) { t.steps = 4; });
  on_rank_1("another model on one rank", "the label differs",
            [](Training& t) { t.blocks = 3; });
  on_rank_1("other options on one rank", "the dtype differs", [](Training& t) {
    t.options.mixed_precision.param_dtype = kBFloat16;
  });
  on_rank_1("another mesh on one rank", "makes no group", [](Training& t) {
    t.axes = {{"fsdp", 2}, {"replicate", 2}};
    t.sharded_over = {"fsdp", "replicate"};
  });
  on_rank_1("another divisor on one rank", "the scale differs",
            [](Training& t) { t.options.reduction.divide_factor = 1; });
  on_rank_1("one rank without a gather in backward", "the label differs",
            [](Training& t) { t.options.reshard_after_forward = false; });
  {
    ProgramFault fault = {"bytes that differ from the formula",
                          FindingKind::kBytes,
                          "the formula is 1",
                          {}};
    fault.options.expected_bytes =
        [](int, const std::string& name) -> std::optional<int64_t> {
      if (name == "fsdp") return 1;
      return std::nullopt;
    };
    faults.push_back(fault);
  }
  return faults;
}

TEST(VerifiedStepProgramsTest, FindsFaultsInPrograms) {
  for (const ProgramFault& fault : ProgramFaults()) {
    SCOPED_TRACE(fault.name);
    const VerifyReport report = Verify(fault.training, fault.options);
    ExpectFound(fault.name, report, fault.kind, fault.text);
  }
}

// What programs do to gradients between the reduction and the update.
TEST(VerifiedStepProgramsTest, VerifiesClippingAndOtherOptimizers) {
  const auto clip = [](nn::Module& model, const DeviceMesh&, int step) {
    if (step == 1) {
      return nn::ClipGradValue(model.Parameters(), 0.5);
    }
    return nn::ClipGradNorm(model.Parameters(), 1.0).status();
  };
  const auto sgd = [](nn::Module& model, const DeviceMesh&, int) {
    nn::Sgd optimizer(model.Parameters(),
                      {.lr = 0.5, .momentum = 0.5, .weight_decay = 0.1});
    CH_RETURN_IF_ERROR(optimizer.Step());
    nn::Lion other(model.Parameters(), {.lr = 0.5, .weight_decay = 0.1});
    return other.Step();
  };
  for (const auto& before_step :
       {decltype(Training::before_step)(clip), {sgd}}) {
    const VerifyReport report = Verify({.before_step = before_step});
    EXPECT_TRUE(report.ok()) << report.ToString();
  }
}

TEST(VerifiedStepProgramsTest, ReportsAnUnreducedGradientOfParametersAlone) {
  Training t;
  t.before_step = [](nn::Module& model, const DeviceMesh&, int) {
    NoGrad no_grad;
    for (nn::Parameter* p : model.Parameters()) p->set_grad(p->data() * 0.25);
    return absl::OkStatus();
  };
  ExpectFound("a gradient made of a parameter", Verify(t),
              FindingKind::kGradient, "not reduced");
}

/// Data parallelism of two ranks without FSDP.
struct Replicated {
  enum class Update { kSgd, kAdamW, kByHand };
  Update update = Update::kAdamW;
  /// Reduces all gradients in one flat tensor.
  bool reduces = false;
  /// Of the flat sum.
  double scale = 0.5;
  /// FSDP wraps the model, but ignores its head.
  bool ignores_head = false;
};

/// Sums the gradients in one flat tensor and multiplies them by `scale`.
absl::Status ReduceInBucket(nn::Module& model, const DeviceMesh& mesh,
                            double scale) {
  const NoGrad no_grad;
  Stream& stream = RankContext::Current().current_stream();
  CH_ASSIGN_OR_RETURN(Communicator * comm, mesh.communicator(0, stream.name()));
  int64_t count = 0;
  for (nn::Parameter* p : model.Parameters()) count += p->data().numel();
  const Tensor flat = Zeros({count}, kFloat32);
  const auto for_each = [&](const std::function<void(Tensor, Tensor)>& copy) {
    int64_t at = 0;
    for (nn::Parameter* p : model.Parameters()) {
      const Shape& sizes = p->data().sizes();
      copy(MakeView(flat.storage(), at, sizes, ContiguousStrides(sizes),
                    kFloat32),
           p->grad());
      at += p->data().numel();
    }
  };
  for_each([](Tensor part, Tensor grad) { CopyInPlace(part, grad); });
  CH_RETURN_IF_ERROR(AllReduce(*comm, flat.raw_data(), count, kFloat32,
                               ReduceOp::kSum, stream, "bucket"));
  MulInPlace(flat, scale);
  for_each([](Tensor part, Tensor grad) { CopyInPlace(grad, part); });
  return absl::OkStatus();
}

absl::Status TrainReplicated(World& world, const Replicated& how) {
  using Update = Replicated::Update;
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"dp", 2}}));
  fsdp::TestModel model(2, kDim, 8, 4);
  model.FillWithIntegers();
  if (how.ignores_head) {
    fsdp::FullyShardOptions options;
    for (nn::Parameter* p : model.Parameters()) {
      if (p->name().find("head") == 0) options.ignored_params.push_back(p);
    }
    CH_RETURN_IF_ERROR(fsdp::FullyShard(model, mesh, options));
  }
  nn::AdamW adamw(model.Parameters(), {.lr = 0.125});
  nn::Sgd sgd(model.Parameters(), {.lr = 0.125});
  for (int step = 0; step < 2; ++step) {
    CH_RETURN_IF_ERROR(Backward(Sum(
        model.Forward(SmallIntegers({2, kDim}, 10 * step + world.rank())))));
    if (how.reduces) {
      CH_RETURN_IF_ERROR(ReduceInBucket(model, mesh, how.scale));
    }
    if (how.update == Update::kAdamW) CH_RETURN_IF_ERROR(adamw.Step());
    if (how.update == Update::kSgd) CH_RETURN_IF_ERROR(sgd.Step());
    const NoGrad no_grad;
    for (nn::Parameter* p : model.Parameters()) {
      if (how.update == Update::kByHand) {
        AddInPlace(p->data(), p->grad(), -0.125);
      }
      p->set_grad(Tensor());
    }
  }
  return absl::OkStatus();
}

VerifyReport VerifyReplicated(const Replicated& how) {
  const auto report = VerifyStep(
      [&](World& world) { return TrainReplicated(world, how); }, {{"dp", 2}});
  EXPECT_TRUE(report.ok()) << report.status();
  return *report;
}

TEST(VerifiedStepProgramsTest, FindsGradientsThatNothingReduces) {
  using Update = Replicated::Update;
  for (const Update update : {Update::kSgd, Update::kAdamW, Update::kByHand}) {
    ExpectFound("nothing is reduced", VerifyReplicated({.update = update}),
                FindingKind::kGradient, "not reduced");
  }
  ExpectFound("an ignored head",
              VerifyReplicated({.update = Update::kSgd, .ignores_head = true}),
              FindingKind::kGradient, "not reduced");
}

TEST(VerifiedStepProgramsTest, VerifiesABucketOfGradients) {
  using Update = Replicated::Update;
  for (const Update update : {Update::kSgd, Update::kAdamW, Update::kByHand}) {
    Replicated how = {.update = update, .reduces = true};
    const VerifyReport report = VerifyReplicated(how);
    EXPECT_TRUE(report.ok()) << report.ToString();
    how.scale = 0.25;
    ExpectFound("a bucket divided twice", VerifyReplicated(how),
                FindingKind::kGradient, "but the divisor is 2");
  }
}

/// Two groups of both ranks, each with a stream of its own.
struct TwoStreams {
  std::shared_ptr<Communicator> a, b;
  Stream *on_a, *on_b;
};
absl::StatusOr<TwoStreams> MakeTwoStreams(World& world) {
  TwoStreams two;
  CH_ASSIGN_OR_RETURN(two.a, world.Group("a", {0, 1}, "stream_a"));
  CH_ASSIGN_OR_RETURN(two.b, world.Group("b", {0, 1}, "stream_b"));
  two.on_a = &world.context().SideStream("stream_a");
  two.on_b = &world.context().SideStream("stream_b");
  return two;
}

VerifyReport VerifyTwo(const std::function<absl::Status(World&)>& program) {
  const auto report = VerifyStep(program, {{"fsdp", 2}});
  EXPECT_TRUE(report.ok()) << report.status();
  return *report;
}

TEST(VerifiedStepProgramsTest, FindsACircularWaitOfTwoStreams) {
  const VerifyReport report = VerifyTwo([](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const TwoStreams two, MakeTwoStreams(world));
    if (world.rank() == 0) {
      CH_RETURN_IF_ERROR(Barrier(*two.a, *two.on_a, "x"));
      two.on_b->Wait(two.on_a->Record());
      return Barrier(*two.b, *two.on_b, "y");
    }
    CH_RETURN_IF_ERROR(Barrier(*two.b, *two.on_b, "y"));
    two.on_a->Wait(two.on_b->Record());
    return Barrier(*two.a, *two.on_a, "x");
  });
  ASSERT_EQ(report.findings.size(), 1u) << report.ToString();
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.kind, FindingKind::kCircularWait);
  EXPECT_THAT(finding.message, HasSubstr("rank 0 stream_a is blocked"));
  EXPECT_THAT(finding.message, HasSubstr("rank 1 stream_a is blocked"));
  EXPECT_THAT(finding.message, HasSubstr("the last waits for the first"));
}

TEST(VerifiedStepProgramsTest, FindsACircularWaitOfHosts) {
  const VerifyReport report = VerifyTwo([](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const TwoStreams two, MakeTwoStreams(world));
    if (world.rank() == 1)
      CH_RETURN_IF_ERROR(two.b->Exchange("", "z").status());
    CH_RETURN_IF_ERROR(Barrier(*two.a, *two.on_a, "x"));
    two.on_a->Synchronize();
    if (world.rank() == 0)
      CH_RETURN_IF_ERROR(two.b->Exchange("", "z").status());
    return absl::OkStatus();
  });
  ASSERT_EQ(report.findings.size(), 1u) << report.ToString();
  EXPECT_EQ(report.findings[0].kind, FindingKind::kCircularWait);
  EXPECT_THAT(report.findings[0].message, HasSubstr("exchange 'z'"));
}

// Compute waits for b before a is issued on one rank, which is fine as long as
// compute is a queue.
TEST(VerifiedStepProgramsTest, FindsACircularWaitOfComputeThatRunsInline) {
  const VerifyReport report = VerifyTwo([](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const TwoStreams two, MakeTwoStreams(world));
    Stream& compute = world.context().compute_stream();
    Communicator& first = world.rank() == 0 ? *two.a : *two.b;
    Communicator& last = world.rank() == 0 ? *two.b : *two.a;
    Stream& on_first = world.rank() == 0 ? *two.on_a : *two.on_b;
    Stream& on_last = world.rank() == 0 ? *two.on_b : *two.on_a;
    CH_RETURN_IF_ERROR(Barrier(first, on_first, "x"));
    compute.Wait(on_first.Record());
    return Barrier(last, on_last, "x");
  });
  ASSERT_EQ(report.findings.size(), 1u) << report.ToString();
  EXPECT_THAT(report.findings[0].message,
              HasSubstr("if compute runs inline, rank 0"));
}

}  // namespace
}  // namespace crosshatch::verify
