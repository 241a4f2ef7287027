// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/traffic.h"

#include <algorithm>
#include <atomic>
#include <tuple>
#include <vector>

#include "crosshatch/base/check.h"

namespace crosshatch::emulation {
namespace {

constexpr int kLanes = 32;

std::atomic<TrafficCount*> current_count{nullptr};

}  // namespace

namespace internal {

thread_local constinit TrafficBlock* traffic_block = nullptr;
thread_local constinit int traffic_thread = 0;

// Not inlined, so that its return address identifies the instruction. Every
// inlined copy of an accessor has another one.
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

void TrafficBlock::Note(const void* site, const void* address, size_t bytes,
                        bool is_store) {
  accesses_.push_back({site, reinterpret_cast<uintptr_t>(address),
                       static_cast<uint32_t>(bytes), internal::traffic_thread,
                       is_store});
}

TrafficBlock::~TrafficBlock() {
  internal::traffic_block = nullptr;
  if (count_ == nullptr) return;
  // The n-th execution of an instruction by the lanes of a warp is one request.
  // A thread's accesses stay in order.
  std::stable_sort(
      accesses_.begin(), accesses_.end(), [](const Access& a, const Access& b) {
        return std::tie(a.site, a.thread) < std::tie(b.site, b.thread);
      });
  struct Sector {
    const void* site;
    int warp;
    int time;
    uintptr_t number;
    bool is_store;
    bool IsOfRequest(const Sector& other) const {
      return site == other.site && warp == other.warp && time == other.time;
    }
  };
  std::vector<Sector> sectors;
  int time = 0;
  for (size_t i = 0; i < accesses_.size(); ++i) {
    const Access& access = accesses_[i];
    const bool again = i > 0 && accesses_[i - 1].site == access.site &&
                       accesses_[i - 1].thread == access.thread;
    time = again ? time + 1 : 0;
    const uintptr_t last = (access.address + access.bytes - 1) / kSectorBytes;
    for (uintptr_t s = access.address / kSectorBytes; s <= last; ++s) {
      sectors.push_back(
          {access.site, access.thread / kLanes, time, s, access.is_store});
    }
  }
  std::sort(sectors.begin(), sectors.end(),
            [](const Sector& a, const Sector& b) {
              return std::tie(a.site, a.warp, a.time, a.number) <
                     std::tie(b.site, b.warp, b.time, b.number);
            });
  Traffic traffic;
  for (size_t i = 0; i < sectors.size(); ++i) {
    const Sector& sector = sectors[i];
    const bool same = i > 0 && sectors[i - 1].IsOfRequest(sector);
    if (same && sectors[i - 1].number == sector.number) continue;
    (sector.is_store ? traffic.store_sectors : traffic.load_sectors) += 1;
    if (same) continue;
    (sector.is_store ? traffic.store_requests : traffic.load_requests) += 1;
  }
  std::lock_guard<std::mutex> lock(count_->mutex_);
  count_->total_.load_requests += traffic.load_requests;
  count_->total_.load_sectors += traffic.load_sectors;
  count_->total_.store_requests += traffic.store_requests;
  count_->total_.store_sectors += traffic.store_sectors;
}

}  // namespace crosshatch::emulation
