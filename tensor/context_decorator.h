// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CONTEXT_DECORATOR_H_
#define CROSSHATCH_TENSOR_CONTEXT_DECORATOR_H_

/// \file
/// ContextDecorator: stands around the streams and the memory of a rank.

#include <memory>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Gets every stream and the allocator of a RankContext when they are made and
/// gives back what the rank is to use instead: mostly something that owns the
/// original, watches and forwards. A test plants faults so.
/// \threadsafety called by the rank's thread.
class ContextDecorator {
 public:
  virtual ~ContextDecorator() = default;
  virtual std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) = 0;
  virtual std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CONTEXT_DECORATOR_H_
