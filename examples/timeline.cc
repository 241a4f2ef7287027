// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/timeline.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/span_log.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "nlohmann/json.hpp"

namespace crosshatch::examples {
namespace {

using nlohmann::json;

json NameOf(const char* kind, int rank, int row, const std::string& name) {
  return {{"ph", "M"},
          {"name", kind},
          {"pid", rank},
          {"tid", row},
          {"args", {{"name", name}}}};
}

// Returns the spans of ranks in the JSON trace format of Chrome. Each rank is a
// process, each stream a row.
std::string ChromeTraceOf(const std::deque<SpanLog>& logs) {
  json events = json::array();
  int rank = 0;
  for (const SpanLog& log : logs) {
    events.push_back(
        NameOf("process_name", rank, 0, absl::StrCat("rank ", rank)));
    std::vector<std::string> rows;
    for (const Span& span : log.spans()) {
      const auto found = std::find(rows.begin(), rows.end(), span.row);
      const auto row = static_cast<int>(found - rows.begin());
      if (found == rows.end()) {
        rows.push_back(span.row);
        events.push_back(NameOf("thread_name", rank, row, span.row));
      }
      if (span.end_us < 0) continue;
      events.push_back({{"ph", "X"},
                        {"name", absl::StrCat(span.what, " ", span.subject)},
                        {"cat", span.what},
                        {"pid", rank},
                        {"tid", row},
                        {"ts", span.begin_us},
                        {"dur", span.end_us - span.begin_us},
                        {"args", {{"group", span.subject}}}});
    }
    ++rank;
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(1);
}

nn::LlamaConfig ConfigOf(const TimelineOptions& options) {
  return {.dim = 256, .layers = options.layers, .heads = 4, .ffn = 688};
}

absl::Status Train(World& world, const TimelineOptions& options) {
  constexpr int64_t kRows = 2;
  constexpr int64_t kLength = 128;
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"fsdp", world.size()}}));
  nn::Llama model(ConfigOf(options));
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, mesh));
  }
  CH_RETURN_IF_ERROR(fsdp::FullyShard(model, mesh));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
  std::vector<int32_t> tokens(kRows * kLength + 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        static_cast<int32_t>((i + static_cast<size_t>(world.rank())) * 7 % 61);
  }
  const Shape shape = {kRows, kLength};
  const Tensor inputs = FromValues<int32_t>(
      shape, absl::MakeConstSpan(tokens).first(kRows * kLength));
  const Tensor targets =
      FromValues<int32_t>(shape, absl::MakeConstSpan(tokens).subspan(1));
  for (int step = 0; step < options.steps; ++step) {
    CH_RETURN_IF_ERROR(Backward(CrossEntropy(model.Forward(inputs), targets)));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
  }
  return world.context().Synchronize();
}

}  // namespace

absl::StatusOr<std::string> TraceTraining(const TimelineOptions& options) {
  constexpr int kMaxRanks = 1024;
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks of a trace must be 1 to ", kMaxRanks,
                     ", not ", options.ranks));
  }
  if (options.steps < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of steps of a trace must be at least 1, not ",
                     options.steps));
  }
  CH_RETURN_IF_ERROR(ConfigOf(options).Validate());
  const auto start = SpanLog::Clock::now();
  std::deque<SpanLog> logs;
  std::vector<EventSink*> sinks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    sinks.push_back(&logs.emplace_back(start));
  }
  CH_RETURN_IF_ERROR(RunLocal(
      options.ranks, [&](World& world) { return Train(world, options); },
      {.sinks = sinks}));
  return ChromeTraceOf(logs);
}

}  // namespace crosshatch::examples
