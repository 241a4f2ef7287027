// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/graph_capture.h"

#include <algorithm>
#include <set>
#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch {

CudaGraphExecState::CudaGraphExecState(const CudaGraphState& graph) {
  for (const auto& node : graph.nodes) {
    Node& copy =
        nodes.emplace_back(Node{node->lane, {}, node->work, node->is_kernel});
    for (const CudaGraphNodeState* before : node->after) {
      copy.after.push_back(before->index);
    }
  }
  for (const uint64_t seed : graph.seeds) {
    lanes.push_back(std::make_unique<emulation::StreamQueue>());
    lanes.back()->SetSeed(seed);
  }
}

void CudaGraphExecState::Launch(emulation::StreamQueue& stream) {
  const auto issue = [](emulation::StreamQueue& queue,
                        emulation::StreamQueue::Task task) {
    CH_CHECK_OK(queue.Issue(std::move(task), /*may_block=*/true));
  };
  const auto wait = [&](emulation::StreamQueue& queue,
                        emulation::QueuePoint point) {
    issue(queue, [point = std::move(point)] { point.Block(); });
  };
  const emulation::QueuePoint begin = stream.Now();
  std::vector<emulation::QueuePoint> ends;
  for (const Node& node : nodes) {
    emulation::StreamQueue& lane = *lanes[node.lane];
    if (node.after.empty()) wait(lane, begin);
    for (const size_t before : node.after) {
      if (nodes[before].lane != node.lane) wait(lane, ends[before]);
    }
    issue(lane, [work = node.work] { (*work)(); });
    ends.push_back(lane.Now());
  }
  for (const auto& lane : lanes) wait(stream, lane->Now());
}

namespace emulation {

void Capture::Join(CudaStreamState* stream, const Frontier& frontier,
                   uint64_t seed) {
  const auto [at, is_new] = lanes.try_emplace(stream);
  if (is_new) {
    at->second.index = graph->seeds.size();
    graph->seeds.push_back(seed);
  }
  for (const CudaGraphNodeState* node : frontier) {
    Frontier& own = at->second.frontier;
    if (std::find(own.begin(), own.end(), node) == own.end()) {
      own.push_back(node);
    }
  }
}

void Capture::Add(CudaStreamState* stream, StreamQueue::Task work,
                  bool is_kernel) {
  Lane& lane = lanes.at(stream);
  graph->nodes.push_back(
      std::make_unique<CudaGraphNodeState>(CudaGraphNodeState{
          graph->nodes.size(), lane.index, lane.frontier,
          std::make_shared<StreamQueue::Task>(std::move(work)), is_kernel}));
  lane.frontier = {graph->nodes.back().get()};
}

bool Capture::IsJoined() const {
  std::set<const CudaGraphNodeState*> before_end;
  Frontier open = lanes.at(origin).frontier;
  while (!open.empty()) {
    const CudaGraphNodeState* const node = open.back();
    open.pop_back();
    if (!before_end.insert(node).second) continue;
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return before_end.size() == graph->nodes.size();
}

cudaError_t WaitInCapture(cudaStream_t stream, const CudaEventState& event) {
  if (event.capture->has_ended) return Return(cudaErrorCapturedEvent);
  if (stream->capture != nullptr && stream->capture != event.capture) {
    event.capture->is_invalid = true;
    return Invalidate(stream, cudaErrorStreamCaptureMerge);
  }
  stream->capture = event.capture;
  event.capture->Join(stream, event.captured_at, stream->delay_seed);
  return cudaSuccess;
}

cudaError_t Invalidate(cudaStream_t stream, cudaError_t error) {
  stream->capture->is_invalid = true;
  return Return(error);
}

namespace {
// Captures that forbid calls which may wait for a device.
thread_local constinit int strict_captures = 0;
}  // namespace

bool IsInStrictCapture() { return strict_captures > 0; }

}  // namespace emulation

using emulation::Invalidate;
using emulation::Return;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    return Invalidate(stream, cudaErrorStreamCaptureUnsupported);
  }
  const bool is_strict = mode != cudaStreamCaptureModeRelaxed;
  stream->capture = std::make_shared<emulation::Capture>(stream, is_strict);
  stream->capture->Join(stream, {}, stream->delay_seed);
  emulation::strict_captures += is_strict ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream == nullptr || graph == nullptr) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  *graph = nullptr;
  const std::shared_ptr<emulation::Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) {
    return Return(cudaErrorStreamCaptureUnmatched);
  }
  capture->has_ended = true;
  emulation::strict_captures -= capture->is_strict ? 1 : 0;
  for (const auto& [of_lane, lane] : capture->lanes) of_lane->capture = nullptr;
  if (capture->is_invalid) return Return(cudaErrorStreamCaptureInvalidated);
  if (!capture->IsJoined()) return Return(cudaErrorStreamCaptureUnjoined);
  *graph = capture->graph.release();
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* /*id*/,
                                     cudaGraph_t* graph,
                                     const cudaGraphNode_t** after,
                                     const cudaGraphEdgeData** /*edges*/,
                                     size_t* num_after) {
  if (stream == nullptr || status == nullptr) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  const emulation::Capture* const capture = stream->capture.get();
  if (capture == nullptr || capture->is_invalid) {
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
                                 : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  }
  *status = cudaStreamCaptureStatusActive;
  const emulation::Frontier& frontier = capture->lanes.at(stream).frontier;
  if (graph != nullptr) *graph = capture->graph.get();
  if (after != nullptr) *after = frontier.data();
  if (num_after != nullptr) *num_after = frontier.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (exec == nullptr || graph == nullptr || flags != 0) {
    return Return(cudaErrorInvalidValue);
  }
  *exec = new CudaGraphExecState(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec == nullptr || stream == nullptr) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture != nullptr) {
    return Invalidate(stream, cudaErrorStreamCaptureUnsupported);
  }
  if (emulation::HaveDevicesFailed()) return Return(cudaErrorLaunchFailure);
  emulation::CountGraphLaunch();
  exec->Launch(stream->queue);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (exec == nullptr) return Return(cudaErrorInvalidResourceHandle);
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return Return(cudaErrorInvalidResourceHandle);
  delete graph;
  return cudaSuccess;
}

}  // namespace crosshatch
