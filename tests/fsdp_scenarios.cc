// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/fsdp_scenarios.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/tests/fsdp_script_conformance.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using Kind = ScriptCall::Kind;

constexpr int kSteps = 2;
constexpr int kMicro = 3;  // Backwards in a step.

// The parts of the model by index.
constexpr int kFirstBlock = 1;
constexpr int kSecondBlock = 4;
// The shards of those parts.
constexpr int kFirstShard = 1;
constexpr int kSecondShard = 2;

ScriptCall Do(Kind kind, int part = 0, int value = 0) {
  return {.kind = kind, .part = part, .value = value, .recurse = true};
}
ScriptCall On(Kind kind, int part = 0, int value = 0) {
  ScriptCall call = Do(kind, part, value);
  call.on = true;
  return call;
}
ScriptCall Off(Kind kind) { return Do(kind); }

// Returns the forward of a micro-batch, and the backward of the oldest loss.
ScriptCall F(int micro) { return Do(Kind::kForward, 0, micro); }
const ScriptCall B = Do(Kind::kBackward);

std::vector<ScriptCall> operator+(std::vector<ScriptCall> calls,
                                  const std::vector<ScriptCall>& more) {
  calls.insert(calls.end(), more.begin(), more.end());
  return calls;
}

std::vector<ScriptCall> PlainStep() { return {F(0), B, F(1), B, F(2), B}; }

// Applies `off` before the first backward and `on` before the last.
std::vector<ScriptCall> Except(const std::vector<Kind>& kinds) {
  std::vector<ScriptCall> off;
  std::vector<ScriptCall> on;
  for (const Kind kind : kinds) {
    off.push_back(Off(kind));
    on.push_back(On(kind));
  }
  return off + std::vector{F(0), B, F(1), B} + on + std::vector{F(2), B};
}

FsdpScript ScriptOf(const Scenario& scenario, const Axes& axes) {
  using Form = PartSpec::Form;
  using Split = PartSpec::Split;
  const PartSpec block = {
      .form = Form::kResidual,
      .parts = {{.bias = true, .relu = true, .split = Split::kColumns},
                {.split = Split::kRows}}};
  FsdpScript script;
  script.axes = axes;
  script.model = {.form = Form::kChain,
                  .parts = {block, block, {.bias = true}}};
  for (PartSpec& part : script.model.parts) {
    if (part.parts.empty()) continue;
    part.repeats = scenario.repeats;
    part.checkpointed = scenario.checkpointed;
  }
  fsdp::FullyShardOptions options = scenario.options;
  if (!options.reduction.divide_factor) options.reduction.divide_factor = 1;
  script.loss_factor = 1;
  for (const int part : {kFirstBlock, kSecondBlock, 0}) {
    script.shards.push_back({.parts = {part}, .options = options});
  }
  script.calls = scenario.before;
  for (int step = 0; step < kSteps; ++step) {
    const bool odd = step % 2 == 1 && !scenario.odd_step.empty();
    for (ScriptCall call : odd ? scenario.odd_step : scenario.step) {
      if (call.kind == Kind::kForward || call.kind == Kind::kForwardPart) {
        call.value += step * kMicro;
      }
      script.calls.push_back(call);
    }
    script.calls.push_back(Do(Kind::kStep));
  }
  if (!scenario.before.empty()) {
    script.calls.push_back(Do(Kind::kExpectNoMemory));
  }
  return script;
}

}  // namespace

std::vector<Axes> ScenarioMeshes() {
  return {{{"fsdp", 2}},
          {{"fsdp", 3}},
          {{"fsdp", 4}},
          {{"replicate", 2}, {"fsdp", 2}},
          {{"fsdp", 2}, {"tp", 2}},
          {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}};
}

std::vector<Scenario> Accumulations() {
  const ScriptCall second = Do(Kind::kBackward, 0, 1);
  const std::vector<ScriptCall> crossed = {F(0), F(1), second, B};
  return {
      {"with communication", PlainStep()},
      {"without communication", Except({Kind::kSync})},
      {"gathered between microbatches", Except({Kind::kReshardAfterBackward})},
      {"gathered, without communication",
       Except({Kind::kReshardAfterBackward, Kind::kSync})},
      {"within replicas", Except({Kind::kAllReduce})},
      {"waiting once", Except({Kind::kLastBackward})},
      {"first nothing, then within replicas, then all",
       {Off(Kind::kSync), Off(Kind::kAllReduce), F(0), B, On(Kind::kSync), F(1),
        B, On(Kind::kAllReduce), F(2), B}},
      {"finalized by hand", std::vector{On(Kind::kManual)} + PlainStep() +
                                std::vector{Do(Kind::kFinalize)}},
      {"two forwards before their backwards", crossed + std::vector{F(2), B}},
      {"two forwards before their backwards, waiting once",
       std::vector{Off(Kind::kLastBackward)} + crossed +
           std::vector{On(Kind::kLastBackward), F(2), B}},
  };
}

std::vector<Scenario> SettingScenarios() {
  std::vector<Scenario> scenarios;
  const auto add = [&](std::string name,
                       const std::vector<ScriptCall>& set) -> Scenario& {
    scenarios.push_back({std::move(name), set + PlainStep()});
    return scenarios.back();
  };
  add("gathered by hand",
      {On(Kind::kUnshard), Do(Kind::kUnshard, kSecondBlock)});
  add("freed by hand", {Do(Kind::kUnshard), Do(Kind::kReshard)});
  add("memory kept", {On(Kind::kKeepUnsharded)});
  add("freed after forward, also the root", {On(Kind::kReshardAfterForward)});
  add("prefetched in lists",
      {On(Kind::kPrefetch, 0, kFirstShard | kSecondShard),
       Do(Kind::kPrefetch, 0, kSecondShard), On(Kind::kPrefetch, kSecondBlock),
       Do(Kind::kPrefetch, kSecondBlock, kFirstShard)});
  add("only sums", {On(Kind::kForceSum)});
  // The divisor is 2 to the power of the value.
  add("divided as set later", {Do(Kind::kDivide)})
      .options.reduction.divide_factor = 7;
  add("unused ones reduced", {On(Kind::kReduceUnused)});
  add("few bytes ahead", {}).options.prefetch.bytes = 1;
  add("three buffers", {}).options.reduction.buffers = 3;
  add("modules run three times", {}).repeats = 3;
  Scenario& event = add("after the optimizer's event", {});
  event.step.push_back(On(Kind::kStep));
  std::vector<ScriptCall> freeze;
  std::vector<ScriptCall> train;
  for (const int parameter : {0, 1, 2}) {  // Of the first block.
    freeze.push_back(On(Kind::kFreeze, 0, parameter));
    train.push_back(Do(Kind::kFreeze, 0, parameter));
  }
  add("frozen at times", freeze).odd_step = train + PlainStep();
  return scenarios;
}

std::vector<Scenario> ShardDims() {
  std::vector<Scenario> scenarios;
  for (const int dim : {0, -1}) {
    scenarios.push_back({absl::StrCat("dim ", dim), PlainStep()});
    scenarios.back().options.shard_dim = [dim](const nn::Parameter&) {
      return dim;
    };
  }
  return scenarios;
}

std::vector<Scenario> SmallerMeshes() {
  std::vector<Scenario> scenarios;
  for (const int size : {1, 2, 4}) {
    for (Scenario scenario : ShardDims()) {
      absl::StrAppend(&scenario.name, " of ", size, " ranks");
      scenario.repeats = 2;
      scenario.options.post_forward_mesh_size = size;
      scenarios.push_back(std::move(scenario));
    }
  }
  return scenarios;
}

Scenario ReplicatedScenario() {
  Scenario scenario{"replicated", PlainStep()};
  scenario.options.reshard_after_forward = false;
  return scenario;
}

Scenario PartsByThemselves() {
  std::vector<ScriptCall> calls =
      PlainStep() + std::vector{Do(Kind::kStep), Do(Kind::kNegate)};
  for (const int block : {kFirstBlock, kSecondBlock}) {
    calls = calls + std::vector{On(Kind::kForwardPart, block), B,
                                Do(Kind::kStep), Do(Kind::kNegate)};
  }
  // Nothing that was prefetched for a part remains.
  calls.push_back(Do(Kind::kForwardPart, kFirstBlock));
  return {"parts", calls};
}

std::vector<ScriptCall> PublicCalls() {
  return {Do(Kind::kUnshard),
          F(41),
          B,
          Off(Kind::kSync),
          F(42),
          B,
          On(Kind::kSync),
          Off(Kind::kAllReduce),
          Off(Kind::kReshardAfterBackward),
          Off(Kind::kLastBackward),
          F(43),
          B,
          On(Kind::kForwardPart, kFirstBlock, 44),
          On(Kind::kManual),
          B,
          F(45),
          B,
          Do(Kind::kFinalize)};
}

Scenario LeftAfter(size_t count) {
  std::vector<ScriptCall> calls = PublicCalls();
  calls.resize(count);
  return {.name = absl::StrCat("left after ", count, " calls"),
          .step = PlainStep(),
          .before = calls + std::vector{Do(Kind::kReset), On(Kind::kSync),
                                        On(Kind::kAllReduce),
                                        On(Kind::kReshardAfterBackward),
                                        On(Kind::kLastBackward),
                                        Off(Kind::kManual), Do(Kind::kZeroGrad),
                                        Do(Kind::kExpectNoMemory)}};
}

void ExpectSameAsOracle(const Scenario& scenario,
                        const std::vector<Axes>& meshes,
                        uint64_t adversarial_seed) {
  for (const Axes& axes : meshes) {
    FsdpScript script = ScriptOf(scenario, axes);
    script.adversarial_seed = adversarial_seed;
    SCOPED_TRACE(absl::StrCat(scenario.name, ":\n", ToString(script)));
    ExpectSameAsOracle(script);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace crosshatch
