// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/hold_buffers.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

uint32_t VersionOf(const Buffer& buffer) {
  const Tensor& data = buffer.data();
  return data.is_distributed() ? data.handler()->memory().version()
                               : data.storage()->version();
}

}  // namespace

Module::ForwardFunction HoldBuffers(Module& module,
                                    Module::ForwardFunction forward) {
  const std::vector<NamedBuffer> buffers = module.NamedBuffers();
  if (buffers.empty()) return forward;
  return [buffers, forward = std::move(forward)](TensorSpan inputs) {
    std::vector<uint32_t> before;
    for (const auto& [name, buffer] : buffers) {
      before.push_back(VersionOf(*buffer));
      const uint32_t at_first = Captured(before.back());
      CH_CHECK_EQ(at_first, before.back())
          << "buffer " << buffer->name() << " was written between a forward "
          << "and its recomputation for backward; write it after the backward";
    }
    TensorList outputs = forward(inputs);
    for (size_t i = 0; i < buffers.size(); ++i) {
      CH_CHECK_EQ(VersionOf(*buffers[i].buffer), before[i])
          << "buffer " << buffers[i].buffer->name() << " is written by a "
          << "forward that is recomputed, so twice a step; write it outside of "
          << "the checkpointed module, or leave the module out of Checkpoint";
    }
    return outputs;
  };
}

}  // namespace crosshatch::nn
