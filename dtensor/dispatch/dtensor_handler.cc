// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

std::string DTensorHandler::Describe() const {
  return absl::StrCat(local_.Describe(), " here|", layout().ToString(), " on ",
                      mesh_.ToString());
}

uint32_t DTensorHandler::Version() const { return local_.storage()->version(); }

bool DTensorHandler::OwnsMemory() const {
  // A view of a part would keep the rest from being freed.
  return !unwritable_ && local_.IsUnique() && local_.is_contiguous() &&
         local_.storage()->bytes() == local_.numel() * SizeOf(local_.dtype());
}

void DTensorHandler::WaitFor(InFlight& work) {
  Stream& stream = RankContext::Current().current_stream();
  for (const Stream* ordered : work.ordered) {
    if (ordered == &stream) return;
  }
  stream.Wait(work.written);
  work.ordered.push_back(&stream);
}

}  // namespace crosshatch
