// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/nccl_communion.h"

#include <algorithm>
#include <cstring>

namespace crosshatch::emulation {
namespace {

size_t ToSize(int n) { return static_cast<size_t>(n); }

bool Agree(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type &&
         a.op == b.op && a.peer == b.peer;
}

void Do(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t bytes = first.bytes();
  if (bytes == 0) return;
  // Read all inputs before writing, because it may be in place.
  std::vector<std::vector<std::byte>> inputs;
  for (const Call& call : calls) {
    size_t size = bytes;
    if (call.kind == CallKind::kReduceScatter) size *= calls.size();
    const auto* const begin = static_cast<const std::byte*>(call.send);
    inputs.emplace_back(begin, begin + size);
  }
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    auto* const out = static_cast<std::byte*>(calls[rank].recv);
    switch (first.kind) {
      case CallKind::kAllGather:
        for (size_t r = 0; r < calls.size(); ++r) {
          std::memcpy(out + r * bytes, inputs[r].data(), bytes);
        }
        break;
      case CallKind::kReduceScatter:
        ReduceAsNccl(inputs, rank * first.count, first.count, first.type,
                     first.op, out);
        break;
      case CallKind::kAllReduce:
        ReduceAsNccl(inputs, 0, first.count, first.type, first.op, out);
        break;
      case CallKind::kBroadcast:
        std::memcpy(out, inputs[ToSize(first.peer)].data(), bytes);
        break;
      case CallKind::kSend:
      case CallKind::kRecv:
        break;
    }
  }
}

std::atomic<int64_t> bytes_between_hosts{0};
std::atomic<int64_t> messages_between_hosts{0};

void CountMessages(int64_t messages, int64_t bytes) {
  messages_between_hosts.fetch_add(messages);
  bytes_between_hosts.fetch_add(messages * bytes);
}

}  // namespace

HostTraffic TrafficBetweenHosts() {
  return {bytes_between_hosts, messages_between_hosts};
}

Communion::Communion(int size) : size_(size), collectives_(ToSize(size)) {}

void Communion::Join(int rank, int host) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joined_[rank] = host;
  }
  changed_.notify_all();
}

bool Communion::TakeDevice(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_.insert(device).second;
}

bool Communion::AllJoined() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(joined_.size()) == size_;
}

void Communion::Run(int rank, const std::vector<Call>& calls,
                    const std::atomic<bool>& is_aborted) {
  std::vector<ArrivalPtr> arrivals;
  std::unique_lock<std::mutex> lock(mutex_);
  for (const Call& call : calls) {
    arrivals.push_back(std::make_shared<Arrival>(Arrival{call}));
    Post(rank, arrivals.back());
  }
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return is_aborted || std::all_of(arrivals.begin(), arrivals.end(),
                                     [](auto& a) { return a->done; });
  });
}

void Communion::AwaitAbort(const std::atomic<bool>& is_aborted) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return is_aborted.load(); });
}

void Communion::Wake() {
  { std::lock_guard<std::mutex> lock(mutex_); }
  changed_.notify_all();
}

void Communion::Split(int64_t split, int rank, int color, int key) {
  std::lock_guard<std::mutex> lock(mutex_);
  splits_[split].came[rank] = {color, key};
}

std::optional<Communion::Child> Communion::ChildOf(int64_t split, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  Division& division = splits_[split];
  if (static_cast<int>(division.came.size()) < size_) return std::nullopt;
  const int color = division.came.at(rank).color;
  Child child;
  if (color == NCCL_SPLIT_NOCOLOR) return child;
  std::vector<std::pair<int, int>> members;
  for (const auto& [each, says] : division.came) {
    if (says.color == color) members.emplace_back(says.key, each);
  }
  std::sort(members.begin(), members.end());
  while (members[ToSize(child.rank)].second != rank) ++child.rank;
  child.communion = division.made[color];
  if (child.communion == nullptr) {
    child.communion = division.made[color] =
        std::make_shared<Communion>(static_cast<int>(members.size()));
  }
  return child;
}

/// The rank that arrives last does the work. A mismatched call stays in its
/// queue, and so does what follows it.
void Communion::Post(int rank, const ArrivalPtr& arrival) {
  const Call& call = arrival->call;
  if (call.kind != CallKind::kSend && call.kind != CallKind::kRecv) {
    collectives_[ToSize(rank)].push_back(arrival);
    MatchCollectives();
    return;
  }
  const bool sends = call.kind == CallKind::kSend;
  const auto way =
      sends ? std::pair(rank, call.peer) : std::pair(call.peer, rank);
  (sends ? sent_ : awaited_)[way].push_back(arrival);
  auto& sent = sent_[way];
  auto& awaited = awaited_[way];
  while (!sent.empty() && !awaited.empty() &&
         sent.front()->call.bytes() == awaited.front()->call.bytes()) {
    const Call& from = sent.front()->call;
    if (from.bytes() > 0) {
      std::memmove(awaited.front()->call.recv, from.send, from.bytes());
    }
    if (joined_[way.first] != joined_[way.second]) {
      CountMessages(1, static_cast<int64_t>(from.bytes()));
    }
    sent.front()->done = awaited.front()->done = true;
    sent.pop_front();
    awaited.pop_front();
  }
}

void Communion::CountBetweenHosts(const Call& collective) const {
  std::set<int> hosts;
  for (const auto& [rank, host] : joined_) hosts.insert(host);
  if (hosts.size() <= 1) return;
  const auto bytes = static_cast<int64_t>(collective.bytes());
  const auto messages = static_cast<int64_t>(hosts.size());
  switch (collective.kind) {
    case CallKind::kAllGather:
    case CallKind::kReduceScatter:
      return CountMessages(messages, (size_ - 1) * bytes);
    case CallKind::kAllReduce:
      return CountMessages(messages, 2 * (size_ - 1) * bytes / size_);
    case CallKind::kBroadcast:
      return CountMessages(messages - 1, bytes);
    case CallKind::kSend:
    case CallKind::kRecv:
      return;
  }
}

void Communion::MatchCollectives() {
  while (std::all_of(
      collectives_.begin(), collectives_.end(), [&](const auto& queue) {
        return !queue.empty() &&
               Agree(queue.front()->call, collectives_[0].front()->call);
      })) {
    std::vector<Call> calls;
    for (auto& queue : collectives_) calls.push_back(queue.front()->call);
    Do(calls);
    CountBetweenHosts(calls[0]);
    for (auto& queue : collectives_) {
      queue.front()->done = true;
      queue.pop_front();
    }
  }
}

}  // namespace crosshatch::emulation
