// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/write_guard.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace crosshatch {
namespace {

/// The guards of a rank that exist.
struct StandingGuards final : RankContext::Extension {
  std::vector<WriteGuard*> standing;
};

}  // namespace

WriteGuard::WriteGuard(std::vector<std::shared_ptr<Storage>> storages,
                       std::function<void()> await)
    : context_(RankContext::Current()),
      storages_(std::move(storages)),
      await_(std::move(await)) {
  std::sort(storages_.begin(), storages_.end());
  context_.Get<StandingGuards>().standing.push_back(this);
}

WriteGuard::~WriteGuard() {
  std::erase(context_.Get<StandingGuards>().standing, this);
}

bool WriteGuard::Guards(const Storage& storage) const {
  const auto found =
      std::lower_bound(storages_.begin(), storages_.end(), &storage,
                       [](const std::shared_ptr<Storage>& a, const Storage* b) {
                         return std::less<const Storage*>()(a.get(), b);
                       });
  return found != storages_.end() && found->get() == &storage;
}

void AwaitReaders(RankContext& context, const Storage& storage) {
  for (WriteGuard* guard : context.Get<StandingGuards>().standing) {
    if (guard->await_ == nullptr || !guard->Guards(storage)) continue;
    // The callback may write to memory that has no readers left.
    std::exchange(guard->await_, nullptr)();
  }
}

}  // namespace crosshatch
