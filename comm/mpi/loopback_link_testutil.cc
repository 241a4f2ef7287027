// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/loopback_link_testutil.h"

#include <algorithm>
#include <cstring>

#include "crosshatch/base/check.h"

namespace crosshatch::internal {

/// One rank's link. Requests are indices of messages that it keeps.
class LoopbackLink final : public Link {
 public:
  LoopbackLink(LoopbackWire& wire, int rank)
      : wire_(wire),
        rank_(rank),
        random_(wire.options_.delay_seed + static_cast<uint64_t>(rank)) {}

  int rank() const override { return rank_; }
  int size() const override { return wire_.options_.size; }
  int core_share() const override { return 1; }
  int max_tag() const override { return 32767; }

  absl::Status TakeControl(int& from, std::string& message) override {
    std::lock_guard lock(wire_.mutex_);
    from = -1;
    if (absl::Status error = OwnLoss(); !error.ok()) return error;
    auto& messages = wire_.controls_[rank_];
    if (Late()) return absl::OkStatus();
    const auto next =
        std::find_if(messages.begin(), messages.end(), [&](const auto& each) {
          return wire_.held_ != std::pair(each.first, rank_);
        });
    if (next == messages.end()) return absl::OkStatus();
    from = next->first;
    message = *next->second;
    messages.erase(next);
    return absl::OkStatus();
  }

  absl::Status Send(int to, int tag, const void* data, int64_t bytes,
                    LinkRequest& request) override {
    std::unique_lock lock(wire_.mutex_);
    if (tag == kControlTag) {
      if (absl::Status error = OwnLoss(); !error.ok()) return error;
      if (!Dead(to)) {
        wire_.controls_[to].emplace_back(
            rank_, std::make_shared<std::string>(static_cast<const char*>(data),
                                                 static_cast<size_t>(bytes)));
      }
      request.pending = false;
      return absl::OkStatus();
    }
    if (rank_ == wire_.options_.blocks_at_send) {
      wire_.is_blocked_ = true;
      wire_.unblocked_.wait(lock, [&] { return !wire_.is_blocked_; });
    }
    if (rank_ == wire_.options_.dies_at_first_send) wire_.lost_[rank_] = true;
    if (absl::Status error = OwnLoss(); !error.ok()) return error;
    auto message = std::make_shared<LoopbackWire::Message>();
    message->from = data;
    message->bytes = bytes;
    if (bytes <= wire_.options_.eager_bytes) {
      message->eager.assign(static_cast<const char*>(data),
                            static_cast<size_t>(bytes));
      message->from = message->eager.data();
    }
    const LoopbackWire::Key key{rank_, to, tag};
    auto& awaited = wire_.awaited_[key];
    if (!Dead(to)) {
      if (awaited.empty()) {
        wire_.sent_[key].push_back(message);
      } else {
        Meet(*message, *awaited.front());
        awaited.pop_front();
      }
    }
    Keep(message, request);
    // An eager message is complete without a receive.
    if (bytes <= wire_.options_.eager_bytes) request.pending = false;
    return absl::OkStatus();
  }

  absl::Status Receive(int from, int tag, void* data, int64_t bytes,
                       LinkRequest& request) override {
    std::lock_guard lock(wire_.mutex_);
    if (absl::Status error = OwnLoss(); !error.ok()) return error;
    auto message = std::make_shared<LoopbackWire::Message>();
    message->to = data;
    message->bytes = bytes;
    const LoopbackWire::Key key{from, rank_, tag};
    auto& sent = wire_.sent_[key];
    if (sent.empty()) {
      wire_.awaited_[key].push_back(message);
    } else {
      Meet(*sent.front(), *message);
      sent.pop_front();
    }
    Keep(message, request);
    return absl::OkStatus();
  }

  absl::Status Test(LinkRequest& request) override {
    std::lock_guard lock(wire_.mutex_);
    if (absl::Status error = OwnLoss(); !error.ok()) return error;
    if (!request.pending || Late()) return absl::OkStatus();
    const auto& message = *kept_.at(request.handle);
    if (!message.done && !message.cancelled) return absl::OkStatus();
    kept_.erase(request.handle);
    request.pending = false;
    return absl::OkStatus();
  }

  absl::Status CancelReceive(LinkRequest& request) override {
    std::lock_guard lock(wire_.mutex_);
    const auto message = kept_.at(request.handle);
    if (message->done) return absl::OkStatus();
    message->cancelled = true;
    for (auto& [key, awaited] : wire_.awaited_) std::erase(awaited, message);
    return absl::OkStatus();
  }

  void Forget(LinkRequest& request) override {
    std::lock_guard lock(wire_.mutex_);
    kept_.erase(request.handle);
    request.pending = false;
  }

  std::chrono::nanoseconds first_sleep() const override {
    const bool all_near = size() <= wire_.options_.num_near;
    return all_near ? longest_sleep() : std::chrono::microseconds(50);
  }
  std::chrono::nanoseconds longest_sleep() const override {
    return std::chrono::milliseconds(1);
  }
  void Notify(int rank) override {
    if (rank == rank_ || Near(rank)) wire_.notifications_[rank].Notify();
  }
  uint32_t Arm() override { return wire_.notifications_[rank_].Arm(); }
  void Disarm() override { wire_.notifications_[rank_].Disarm(); }
  void Sleep(uint32_t seen, std::chrono::nanoseconds longest) override {
    wire_.notifications_[rank_].Sleep(seen, longest);
  }

 private:
  bool Near(int rank) const {
    return (rank < wire_.options_.num_near) ==
           (rank_ < wire_.options_.num_near);
  }
  // \pre the wire's lock is held
  bool Dead(int to) const { return wire_.lost_[to] || wire_.lost_[rank_]; }
  absl::Status OwnLoss() const {
    if (!wire_.lost_[rank_]) return absl::OkStatus();
    return absl::InternalError("this end is cut off");
  }
  bool Late() {
    if (wire_.options_.delay_seed == 0) return false;
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return (random_ >> 33) % 2 == 0;
  }
  void Meet(LoopbackWire::Message& sent, LoopbackWire::Message& awaited) {
    CH_CHECK_EQ(sent.bytes, awaited.bytes);
    std::memcpy(awaited.to, sent.from, static_cast<size_t>(sent.bytes));
    sent.done = awaited.done = true;
  }
  void Keep(std::shared_ptr<LoopbackWire::Message> message,
            LinkRequest& request) {
    request.handle = ++requests_;
    request.pending = true;
    kept_[request.handle] = std::move(message);
  }

  LoopbackWire& wire_;
  const int rank_;
  uint64_t random_;
  uint64_t requests_ = 0;
  std::map<uint64_t, std::shared_ptr<LoopbackWire::Message>> kept_;
};

LoopbackWire::LoopbackWire(const LoopbackOptions& options)
    : options_(options),
      controls_(static_cast<size_t>(options.size)),
      lost_(static_cast<size_t>(options.size)),
      notifications_(static_cast<size_t>(options.size)) {}

std::unique_ptr<Link> LoopbackWire::End(int rank) {
  return std::make_unique<LoopbackLink>(*this, rank);
}

void LoopbackWire::Hold(int from, int to) {
  std::lock_guard lock(mutex_);
  held_ = {from, to};
}

void LoopbackWire::Release() { Hold(-1, -1); }

int LoopbackWire::num_held() const {
  std::lock_guard lock(mutex_);
  int held = 0;
  for (size_t to = 0; to < controls_.size(); ++to) {
    for (const auto& [from, message] : controls_[to]) {
      held += held_ == std::pair(from, static_cast<int>(to)) ? 1 : 0;
    }
  }
  return held;
}

bool LoopbackWire::is_blocked() const {
  std::lock_guard lock(mutex_);
  return is_blocked_;
}

void LoopbackWire::Unblock() {
  std::lock_guard lock(mutex_);
  is_blocked_ = false;
  options_.blocks_at_send = -1;
  unblocked_.notify_all();
}

bool LoopbackWire::lost(int rank) const {
  std::lock_guard lock(mutex_);
  return lost_[rank];
}

int LoopbackWire::num_unread() const {
  std::lock_guard lock(mutex_);
  int unread = 0;
  for (size_t rank = 0; rank < controls_.size(); ++rank) {
    if (!lost_[rank]) unread += static_cast<int>(controls_[rank].size());
  }
  return unread;
}

int LoopbackWire::num_unmet() const {
  std::lock_guard lock(mutex_);
  int unmet = 0;
  for (const auto& [key, messages] : sent_) {
    unmet += static_cast<int>(messages.size());
  }
  return unmet;
}

}  // namespace crosshatch::internal
