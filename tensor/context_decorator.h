// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CONTEXT_DECORATOR_H_
#define CROSSHATCH_TENSOR_CONTEXT_DECORATOR_H_

/// \file
/// ContextDecorator: wraps the streams and the allocator of a rank.
///
/// A test seam: fault injectors and probes implement it, and nothing else does.

#include <memory>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Receives every stream and the allocator of a RankContext when they are
/// created and returns what the rank uses instead, usually an object that owns
/// the original, observes and forwards. Tests inject faults this way.
/// \threadsafety Called by the rank's thread.
class ContextDecorator {
 public:
  virtual ~ContextDecorator() = default;
  virtual std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) = 0;
  virtual std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CONTEXT_DECORATOR_H_
