// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/traffic.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch::emulation {
namespace {

constexpr int kLanes = 32;

std::atomic<TrafficCount*> current_count{nullptr};
thread_local constinit int current_thread = 0;

}  // namespace

namespace internal {

thread_local constinit TrafficBlock* traffic_block = nullptr;

// Not inlined, so that its return address is the place of the call, of which
// every inlined copy of an accessor has its own.
[[gnu::noinline]] void NoteAccess(const void* address, size_t bytes,
                                  bool is_store) {
  traffic_block->Note(__builtin_return_address(0), address, bytes, is_store);
}

}  // namespace internal

TrafficCount::TrafficCount() {
  TrafficCount* none = nullptr;
  CH_CHECK(current_count.compare_exchange_strong(none, this))
      << "traffic is counted already";
}

TrafficCount::~TrafficCount() { current_count.store(nullptr); }

Traffic TrafficCount::total() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return total_;
}

TrafficBlock::TrafficBlock() : count_(current_count.load()) {
  if (count_ != nullptr) internal::traffic_block = this;
}

void TrafficBlock::SetThread(int number) { current_thread = number; }

void TrafficBlock::Note(const void* site, const void* address, size_t bytes,
                        bool is_store) {
  accesses_.push_back({site, reinterpret_cast<uintptr_t>(address),
                       static_cast<uint32_t>(bytes), current_thread, is_store});
}

TrafficBlock::~TrafficBlock() {
  internal::traffic_block = nullptr;
  if (count_ == nullptr) return;
  // The n-th time that the lanes of a warp come to an instruction is one
  // request of theirs.
  std::map<std::pair<int, const void*>, int> times;
  std::map<std::tuple<int, const void*, int>, std::vector<uintptr_t>> requests;
  std::map<const void*, bool> stores;
  for (const Access& access : accesses_) {
    const int time = times[{access.thread, access.site}]++;
    std::vector<uintptr_t>& sectors =
        requests[{access.thread / kLanes, access.site, time}];
    const uintptr_t last = (access.address + access.bytes - 1) / kSectorBytes;
    for (uintptr_t s = access.address / kSectorBytes; s <= last; ++s) {
      sectors.push_back(s);
    }
    stores[access.site] = access.is_store;
  }
  Traffic traffic;
  for (auto& [key, sectors] : requests) {
    std::sort(sectors.begin(), sectors.end());
    const auto distinct =
        std::unique(sectors.begin(), sectors.end()) - sectors.begin();
    const bool is_store = stores[std::get<1>(key)];
    (is_store ? traffic.store_requests : traffic.load_requests) += 1;
    (is_store ? traffic.store_sectors : traffic.load_sectors) += distinct;
  }
  std::lock_guard<std::mutex> lock(count_->mutex_);
  count_->total_.load_requests += traffic.load_requests;
  count_->total_.load_sectors += traffic.load_sectors;
  count_->total_.store_requests += traffic.store_requests;
  count_->total_.store_sectors += traffic.store_sectors;
}

}  // namespace crosshatch::emulation
