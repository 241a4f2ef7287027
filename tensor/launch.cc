// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/launch.h"

namespace crosshatch::internal {

Block Workspace(int64_t bytes) {
  if (bytes == 0) return Block();
  RankContext& context = RankContext::Current();
  return context.allocator().Allocate(bytes, context.memory_class(),
                                      context.current_stream());
}

}  // namespace crosshatch::internal
