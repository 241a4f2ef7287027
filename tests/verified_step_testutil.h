// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_VERIFIED_STEP_TESTUTIL_H_
#define CROSSHATCH_TESTS_VERIFIED_STEP_TESTUTIL_H_

/// \file
/// A training with FSDP for tests of VerifyStep, and what they expect of it.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/verify/verify_step.h"
#include "gtest/gtest.h"

namespace crosshatch::verify {

inline constexpr int64_t kDim = 4;

/// How a training differs from the plain one.
struct Training {
  std::vector<MeshAxis> axes = {{"replicate", 2}, {"fsdp", 2}};
  std::vector<std::string> sharded_over = {"replicate", "fsdp"};
  fsdp::FullyShardOptions options = {};
  std::shared_ptr<fsdp::CustomComm> custom = nullptr;
  bool keep_unsharded = false;
  int microbatches = 1;
  int blocks = 2;
  int steps = 3;
  /// Called after each backward and before each step.
  std::function<absl::Status(nn::Module& model, const DeviceMesh& mesh,
                             int step)>
      before_step = nullptr;
  /// Changes the training of rank 1.
  std::function<void(Training&)> change = nullptr;
};

inline absl::Status TrainAs(World& world, Training training) {
  if (training.change && world.rank() == 1) training.change(training);
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, training.axes));
  CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice(training.sharded_over));
  fsdp::TestModel model(training.blocks, kDim, 8, 4);
  model.FillWithIntegers();
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(*block, data, training.options));
  }
  CH_RETURN_IF_ERROR(fsdp::FullyShard(model, data, training.options));
  if (training.custom != nullptr) {
    CH_RETURN_IF_ERROR(fsdp::Configure(
        model, [&](fsdp::Settings& s) { s.custom_comm = training.custom; }));
  }
  if (training.keep_unsharded) {
    CH_RETURN_IF_ERROR(fsdp::Configure(
        model, [](fsdp::Settings& s) { s.keep_unsharded = true; }));
  }
  nn::AdamW optimizer(model.Parameters(), {.lr = 0.125});
  for (int step = 0; step < training.steps; ++step) {
    for (int m = 0; m < training.microbatches; ++m) {
      const Tensor loss = Sum(model.Forward(
          SmallIntegers({2, kDim}, 10 * step + m + world.rank())));
      CH_RETURN_IF_ERROR(Backward(loss));
    }
    if (training.before_step) {
      CH_RETURN_IF_ERROR(training.before_step(model, mesh, step));
    }
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
  }
  return absl::OkStatus();
}

inline VerifyReport Verify(const Training& training,
                           const VerifyOptions& options = {}) {
  absl::StatusOr<VerifyReport> report =
      VerifyStep([&](World& world) { return TrainAs(world, training); },
                 training.axes, options);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

/// Expects a finding of `kind` with `text`, and prints it.
inline void ExpectFound(const std::string& name, const VerifyReport& report,
                        Finding::Kind kind, const std::string& text) {
  const auto found = std::find_if(
      report.findings.begin(), report.findings.end(), [&](const Finding& f) {
        return f.kind == kind &&
               (f.message + f.missing).find(text) != std::string::npos;
      });
  ASSERT_NE(found, report.findings.end()) << name << "\n" << report.ToString();
  EXPECT_GE(found->first.rank, 0) << name;
  std::printf("%s: %s: %s\n    missing: %s\n", name.c_str(), Name(found->kind),
              found->message.c_str(), found->missing.c_str());
}

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_TESTS_VERIFIED_STEP_TESTUTIL_H_
