// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_SPAN_H_
#define CROSSHATCH_TENSOR_SPAN_H_

/// \file
/// Spans of work on a stream, for traces. The stream writes them to the rank's
/// event sink when it reaches them. They cost a comparison if the sink wants
/// none (EventSink::wants_spans).

#include <string>

#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Begins a span on `stream`, e.g. "all_gather" of "layers.0", which the
/// EndSpan with equal arguments ends.
/// \param what has static storage.
void BeginSpan(Stream& stream, const char* what, const std::string& subject);
void EndSpan(Stream& stream, const char* what, const std::string& subject);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_SPAN_H_
