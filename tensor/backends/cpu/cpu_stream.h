// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_STREAM_H_
#define CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_STREAM_H_

/// \file
/// The streams of the CPU. A backend makes them; everybody else sees Stream.

#include <memory>
#include <string>

#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// A stream whose work runs when it is issued, on the issuing thread.
/// \param context given to the work; outlives the stream.
std::unique_ptr<Stream> MakeInlineStream(std::string name,
                                         KernelContext* context);

/// A stream with a queue and a worker thread of its own. Its destructor waits
/// until all issued work is done. An adversarial one delays its work by choices
/// that follow from the seed, the rank and the stream's name. What of `rank` is
/// not there it does without.
std::unique_ptr<Stream> MakeQueueStream(std::string name, RankParts rank);

/// What a rank of the CPU gets: a compute stream runs inline where it is not
/// adversarial, all else is a queue.
std::unique_ptr<Stream> MakeCpuStream(const std::string& name, StreamRole role,
                                      const RankParts& rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_STREAM_H_
