// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/poller.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "crosshatch/base/threads.h"

namespace crosshatch::internal {
namespace {

/// Polls before sleeping: some tens of microseconds, about the cost of a sleep
/// and a wake-up.
constexpr int kLooks = 40;

}  // namespace

Poller::Poller(Link& link, std::function<bool()> take_messages)
    : link_(link), take_messages_(std::move(take_messages)) {}

void Poller::Wait(std::unique_lock<std::mutex>& lock,
                  absl::FunctionRef<bool()> done) {
  // The messages that have come may suffice.
  if (!has_leader_) take_messages_();
  if (done()) return;
  Waiter self{.done = done};
  waiters_.push_back(&self);
  // The leader may be in a long sleep because nothing was going on.
  if (has_leader_ && link_.first_sleep() != link_.longest_sleep()) {
    link_.Notify(link_.rank());
  }
  while (!self.finished) {
    if (has_leader_) {
      self.wake.wait(lock);
    } else {
      has_leader_ = true;
      Lead(lock, self);
      has_leader_ = false;
    }
  }
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &self));
  if (!has_leader_ && !waiters_.empty()) waiters_.front()->wake.notify_one();
}

void Poller::LookOnce() {
  if (!has_leader_) Look();
}

void Poller::Lead(std::unique_lock<std::mutex>& lock, Waiter& self) {
  std::chrono::nanoseconds sleep = link_.first_sleep();
  int looks = 0;
  while (true) {
    if (Look()) {
      looks = 0;
      sleep = link_.first_sleep();
    }
    if (self.finished) return;
    if (++looks < kLooks) {
      // Threads that send need the lock.
      lock.unlock();
      Pause();
      lock.lock();
      continue;
    }
    const uint32_t seen = link_.Arm();
    if (Look()) {
      link_.Disarm();
      if (self.finished) return;
      looks = 0;
      continue;
    }
    lock.unlock();
    link_.Sleep(seen, sleep);
    lock.lock();
    sleep = std::min(2 * sleep, link_.longest_sleep());
  }
}

bool Poller::Look() {
  bool any = take_messages_();
  for (Waiter* waiter : waiters_) {
    if (waiter->finished || !waiter->done()) continue;
    waiter->finished = true;
    waiter->wake.notify_one();
    any = true;
  }
  return any;
}

}  // namespace crosshatch::internal
