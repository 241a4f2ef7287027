// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_WRITE_GUARD_H_
#define CROSSHATCH_TENSOR_WRITE_GUARD_H_

/// \file
/// Memory that somebody beside the rank's thread still reads, such as a copy of
/// it that goes on while the rank computes.

#include <functional>
#include <memory>
#include <vector>

#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch {

/// While it stands, the first op that is to write to memory of `storages`
/// (BeginWrite) lets the readers come to their end before, by `await`, which is
/// called once and blocks; from then on it does nothing. So a rank may go on
/// with all that only reads, as a forward and a backward do parameters. Writes
/// through an address of the program's own (Tensor::data) are not seen.
/// \threadsafety made, kept and dropped on the rank's thread, which calls
///     `await` too.
class WriteGuard {
 public:
  WriteGuard(std::vector<std::shared_ptr<Storage>> storages,
             std::function<void()> await);
  /// Does not call `await`.
  ~WriteGuard();
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;

 private:
  friend void AwaitReaders(RankContext& context, const Storage& storage);

  bool Guards(const Storage& storage) const;

  RankContext& context_;
  std::vector<std::shared_ptr<Storage>> storages_;  ///< By address.
  std::function<void()> await_;  ///< Null once it was called.
};

/// What a write to `storage` has to do first.
void AwaitReaders(RankContext& context, const Storage& storage);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_WRITE_GUARD_H_
