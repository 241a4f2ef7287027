// SPDX-License-Identifier: Apache-2.0

/// \file
/// VerifyStep on correct programs, and the faults of other suites: each wait
/// and lease of the scenarios of //fsdp/tests:injected_faults_sweep_test is
/// omitted in the log.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/tests/adversarial_training_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/mixture_of_experts.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/expert_parallel.h"
#include "crosshatch/tp/parallelize_module.h"
#include "crosshatch/verify/verify_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// examples/two_d_training.cc.
absl::Status Train(crosshatch::World& world);

namespace crosshatch::verify {
namespace {

using EventKind = LoggedEvent::Kind;

VerifyReport VerifyScenario(const fsdp::Scenario& scenario) {
  const auto report = VerifyStep(
      [&](World& world) { return fsdp::TrainScenario(world, scenario); },
      scenario.axes);
  EXPECT_TRUE(report.ok()) << report.status();
  return *report;
}

bool HasFinding(const OrderResult& result, Finding::Kind kind) {
  return std::any_of(result.findings.begin(), result.findings.end(),
                     [&](const Finding& f) { return f.kind == kind; });
}

// Where a run with random delays needs up to a thousand seeds, the log of one
// rank shows each fault or why it has no effect.
TEST(VerifiedStepTest, EveryWaitAndLeaseOfTheScenariosCounts) {
  for (const fsdp::Scenario& scenario : fsdp::AllScenarios()) {
    SCOPED_TRACE(scenario.name);
    const VerifyReport report = VerifyScenario(scenario);
    ASSERT_TRUE(report.ok()) << report.ToString();
    const RankLog& log = report.job.logs[0];
    std::set<int64_t> superfluous;
    for (const EventOfRank& wait : report.superfluous_waits) {
      if (wait.rank == log.rank) superfluous.insert(wait.event);
    }
    int waits = 0, found = 0, without_conflict = 0, uses = 0, needed_uses = 0;
    for (size_t i = 0; i < log.events.size(); ++i) {
      const LoggedEvent& event = log.events[i];
      if (event.kind != EventKind::kWait && event.kind != EventKind::kUse) {
        continue;
      }
      RankLog without = log;
      without.events.erase(without.events.begin() + static_cast<int64_t>(i));
      const OrderResult order = CheckOrder(without);
      if (event.kind == EventKind::kUse) {
        ++uses;
        needed_uses += HasFinding(order, Finding::Kind::kLifetime);
        continue;
      }
      ++waits;
      if (!order.findings.empty()) {
        ++found;
        EXPECT_EQ(superfluous.count(static_cast<int64_t>(i)), 0u);
      } else if (superfluous.count(static_cast<int64_t>(i)) == 0) {
        ++without_conflict;
        if (std::getenv("CROSSHATCH_PRINT_WAITS") != nullptr) {
          std::printf("  no conflict: %s\n",
                      log.Describe(static_cast<int64_t>(i)).c_str());
        }
      }
    }
    // Memory that ends as soon as it is leased.
    int early = 0, used_leases = 0;
    for (size_t lease = 0; lease < log.leases.size(); ++lease) {
      RankLog early_log = log;
      std::vector<LoggedEvent>& events = early_log.events;
      const auto is = [&](EventKind kind) {
        return [&, kind](const LoggedEvent& e) {
          return e.kind == kind && e.id == static_cast<int64_t>(lease);
        };
      };
      const auto end =
          std::find_if(events.begin(), events.end(), is(EventKind::kRelease));
      const LoggedEvent release = *end;
      events.erase(end);
      const auto begin =
          std::find_if(events.begin(), events.end(), is(EventKind::kLease));
      events.insert(begin + 1, release);
      const bool used = std::any_of(
          log.accesses.begin(), log.accesses.end(), [&](const LoggedAccess& a) {
            return log.LeaseAt(a.begin) == static_cast<int64_t>(lease);
          });
      used_leases += used;
      early += HasFinding(CheckOrder(early_log), Finding::Kind::kLifetime);
    }
    EXPECT_EQ(early, used_leases);
    EXPECT_GT(found, 0);
    EXPECT_GT(needed_uses, 0);
    std::printf(
        "%s: of %d waits %d are needed, %zu superfluous, %d order nothing that "
        "conflicts; of %d uses on other streams %d are needed; of %zu leases "
        "%d are used\n",
        scenario.name.c_str(), waits, found, superfluous.size(),
        without_conflict, uses, needed_uses, log.leases.size(), used_leases);
  }
}

examples::TrainOptions LanguageModel(std::vector<MeshAxis> mesh) {
  examples::TrainOptions options;
  options.mesh = std::move(mesh);
  options.config = {.dim = 48,
                    .layers = 2,
                    .heads = 6,
                    .kv_heads = 3,
                    .ffn = 50,
                    .vocab = 256};
  options.global_batch = options.world_size() / options.AxisSize("tp");
  options.seq_len = 8;
  options.lr = 1e-3;
  options.clip_norm = 1;
  return options;
}

examples::TokenSource Tokens() {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/text");
  std::ofstream(path) << "a text to learn";
  auto tokens = examples::TokenSource::FromText({path});
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return *std::move(tokens);
}

absl::StatusOr<VerifyReport> VerifyTraining(
    const examples::TrainOptions& options, int max_ranks = 64) {
  const examples::TokenSource tokens = Tokens();
  VerifyOptions how;
  how.max_ranks = max_ranks;
  how.divisor = 1;  // The loss is divided.
  return VerifyStep(
      [&](World& world) {
        return examples::TrainDry(world, options, tokens, /*steps=*/2);
      },
      options.mesh, how);
}

TEST(VerifiedStepTest, VerifiesLanguageModels) {
  using Mesh = std::vector<MeshAxis>;
  for (const Mesh& mesh :
       {Mesh{{"fsdp", 1}}, Mesh{{"fsdp", 3}}, Mesh{{"fsdp", 2}, {"tp", 2}},
        Mesh{{"fsdp", 1}, {"tp", 3}}, Mesh{{"replicate", 2}, {"fsdp", 3}},
        Mesh{{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}}) {
    for (const bool variant : {false, true}) {
      examples::TrainOptions options = LanguageModel(mesh);
      if (variant) {
        options.accumulate = 2;
        options.global_batch *= 2;
        options.dtype = kBFloat16;
        options.recompute = true;
        options.offload = true;
      }
      const auto report = VerifyTraining(options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->ok()) << report->ToString();
      EXPECT_EQ(report->unknown_kernels, 0);
    }
  }
}

TEST(VerifiedStepTest, VerifiesTheExampleOfTheReadme) {
  // [verify]
  const absl::StatusOr<VerifyReport> report =
      VerifyStep(::Train, {{"fsdp", 2}, {"tp", 2}});
  // [/verify]
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->ok()) << report->ToString();
}

// Classes give what running every rank gives, also where sizes do not divide.
TEST(VerifiedStepTest, ClassesStandForAllRanks) {
  const examples::TrainOptions options =
      LanguageModel({{"fsdp", 7}, {"tp", 3}});
  const auto all = VerifyTraining(options);
  const auto classes = VerifyTraining(options, /*max_ranks=*/1);
  ASSERT_TRUE(all.ok() && classes.ok()) << classes.status();
  EXPECT_TRUE(all->ok()) << all->ToString();
  EXPECT_TRUE(classes->ok()) << classes->ToString();
  EXPECT_LT(classes->job.logs.size(), all->job.logs.size());
  for (int rank = 0; rank < 21; ++rank) {
    EXPECT_EQ(all->job.LogOf(rank).Digest(), classes->job.LogOf(rank).Digest())
        << rank;
  }
}

TEST(VerifiedStepTest, RefusesClassesIfOneRankDiffers) {
  const auto report = VerifyStep(
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"a", 16}, {"b", 16}}));
        if (world.rank() == 255) Zeros({3}, kFloat32);
        return absl::OkStatus();
      },
      {{"a", 16}, {"b", 16}});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()),
              testing::HasSubstr("rank 255 does not issue the same"));
}

TEST(VerifiedStepTest, VerifiesJobsOf16384Ranks) {
  const auto begin = std::chrono::steady_clock::now();
  examples::TrainOptions options = LanguageModel({{"fsdp", 128}, {"tp", 128}});
  options.config = {.dim = 16384,
                    .layers = 4,
                    .heads = 128,
                    .kv_heads = 128,
                    .ffn = 16384,
                    .vocab = 16384};
  options.seq_len = 128;
  const auto report = VerifyTraining(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->ok()) << report->ToString();
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  std::printf("%sin %.2f s\n", report->ToString().c_str(), seconds.count());
}

// Experts on a mesh of one rank: no rank sums their gradients, which still have
// to be divided, once, by the ranks that split the batch.
enum class ExpertFault { kNone, kNoDivisor, kDividesEachMicrobatch };

absl::Status TrainExperts(World& world, ExpertFault fault) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"ep", 4}, {"fsdp", 1}}));
  CH_ASSIGN_OR_RETURN(const DeviceMesh ep, mesh.Slice("ep"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh of_expert, mesh.Slice("fsdp"));
  nn::MixtureOfExperts model(
      {.dim = 8, .hidden = 12, .experts = 5, .choices = 2});
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      model, ep, {{"", tp::ExpertParallel({.batch = ep})}}));
  fsdp::FullyShardOptions options;
  options.reduction.divide_factor = 4;
  options.mesh_of = [&](const nn::Parameter& p) -> std::optional<DeviceMesh> {
    if (p.name().find("_proj") == std::string::npos) return std::nullopt;
    return of_expert;
  };
  if (fault != ExpertFault::kNone) {
    // The divisor of the group's own mesh.
    options.reduction.divide_factor = 1;
  }
  options.shard_dim = [](const nn::Parameter& p) {
    return p.name().find("_proj") == std::string::npos ? 0 : 1;
  };
  CH_RETURN_IF_ERROR(fsdp::FullyShard(model, ep, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
  for (int step = 0; step < 2; ++step) {
    for (int microbatch = 0; microbatch < 128; ++microbatch) {
      const TensorList out = model.Call({Ones({2, 3, 8}, kFloat32)});
      CH_RETURN_IF_ERROR(Backward(Sum(out[0])));
      if (fault != ExpertFault::kDividesEachMicrobatch) continue;
      const NoGrad no_grad;
      for (nn::Parameter* p : model.Parameters()) {
        MulInPlace(LocalTensor(p->grad()), 0.25);
      }
    }
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
  }
  return absl::OkStatus();
}

TEST(VerifiedStepTest, FindsWrongDivisorsOfExpertsOnOneRank) {
  const auto verify = [](ExpertFault fault) {
    const auto report =
        VerifyStep([&](World& world) { return TrainExperts(world, fault); },
                   {{"ep", 4}, {"fsdp", 1}});
    EXPECT_TRUE(report.ok()) << report.status();
    return *report;
  };
  const VerifyReport correct = verify(ExpertFault::kNone);
  EXPECT_TRUE(correct.ok()) << correct.ToString();
  const VerifyReport undivided = verify(ExpertFault::kNoDivisor);
  ASSERT_FALSE(undivided.ok());
  EXPECT_THAT(undivided.ToString(), testing::HasSubstr("but the divisor is 4"));
  const VerifyReport repeated = verify(ExpertFault::kDividesEachMicrobatch);
  ASSERT_FALSE(repeated.ok());
  EXPECT_THAT(repeated.ToString(),
              testing::HasSubstr("a sum of parts that differ"));
  std::printf("%s", repeated.ToString().c_str());
}

}  // namespace
}  // namespace crosshatch::verify
