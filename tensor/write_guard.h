// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_WRITE_GUARD_H_
#define CROSSHATCH_TENSOR_WRITE_GUARD_H_

/// \file
/// WriteGuard: protects memory that another thread still reads, such as an
/// asynchronous copy, from writes by the rank.

#include <functional>
#include <memory>
#include <vector>

#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch {

/// Makes the first write of an op to memory of `storages` (BeginWrite) wait for
/// the readers: it calls `await` once, which blocks. Meanwhile the rank may
/// read, as forward and backward read parameters. Writes through an address
/// (Tensor::data) are not detected.
/// \threadsafety The rank's thread only, which also calls `await`.
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
  std::function<void()> await_;                     ///< Null after the call.
};

/// Waits for readers of `storage` before a write.
void AwaitReaders(RankContext& context, const Storage& storage);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_WRITE_GUARD_H_
