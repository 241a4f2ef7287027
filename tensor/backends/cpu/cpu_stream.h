// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_STREAM_H_
#define CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_STREAM_H_

/// \file
/// The streams of the CPU, for its backend.

#include <memory>
#include <string>

#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Returns a stream whose work runs when it is issued, on the issuing thread.
/// \param context passed to the work; outlives the stream.
std::unique_ptr<Stream> MakeInlineStream(std::string name,
                                         KernelContext* context);

/// Returns a stream with a queue and a worker thread of its own. Its destructor
/// waits until all issued work is done. An adversarial stream delays its work
/// as a function of the seed, the rank and the stream's name. Null members of
/// `rank` are not used.
std::unique_ptr<Stream> MakeQueueStream(std::string name, RankParts rank);

/// Returns a stream for a rank on the CPU: a compute stream that is not
/// adversarial runs inline; every other stream is a queue.
std::unique_ptr<Stream> MakeCpuStream(const std::string& name, StreamRole role,
                                      const RankParts& rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_STREAM_H_
