// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_SPAN_H_
#define CROSSHATCH_TENSOR_SPAN_H_

/// \file
/// Spans: from when to when a stream works on something, for traces. Written to
/// the rank's event sink by the stream itself, when it gets there; costs a
/// comparison where the sink wants none (EventSink::wants_spans).

#include <string>

#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// What is issued to `stream` until the EndSpan of the same words is one piece
/// of work: "all_gather" of "layers.0".
/// \param what lives as long as the program.
void BeginSpan(Stream& stream, const char* what, const std::string& subject);
void EndSpan(Stream& stream, const char* what, const std::string& subject);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_SPAN_H_
