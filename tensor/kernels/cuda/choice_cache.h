// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_CHOICE_CACHE_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_CHOICE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

#include "absl/functional/function_ref.h"

namespace crosshatch::internal {

/// A cache of choices by key, such as an algorithm for the shape of a product.
/// Beyond the maximum size, the oldest key is evicted and chosen again when
/// needed.
/// \threadsafety Any thread. One chooses at a time, and a key once.
template <typename Key, typename Choice>
class ChoiceCache {
 public:
  explicit ChoiceCache(size_t most) : most_(most) {}

  Choice Get(const Key& key, absl::FunctionRef<Choice()> choose) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = choices_.find(key); found != choices_.end()) {
      return found->second;
    }
    ++made_;
    const Choice choice = choose();
    if (choices_.size() == most_) {
      choices_.erase(oldest_first_.front());
      oldest_first_.pop_front();
    }
    oldest_first_.push_back(key);
    choices_.emplace(key, choice);
    return choice;
  }

  /// Returns the number of choices made.
  int64_t made() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return made_;
  }

 private:
  const size_t most_;
  mutable std::mutex mutex_;
  std::map<Key, Choice> choices_;
  std::deque<Key> oldest_first_;
  int64_t made_ = 0;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_CHOICE_CACHE_H_
