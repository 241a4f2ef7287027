// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/fault_injector_testutil.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

// An event of a injected stream, with its number in the log.
class FaultInjector::Point final : public Event::State {
 public:
  Point(FaultInjector& injector, Event event, int stream, int64_t id)
      : injector_(injector),
        event_(std::move(event)),
        stream_(stream),
        id_(id) {}

  bool reached() override { return event_.state()->reached(); }
  void Block() override {
    injector_.log_.issues.push_back(
        {.kind = Issue::Kind::kHostWait, .stream = stream_, .point = id_});
    event_.state()->Block();
  }
  void BlockWorker(AgentId worker) override {
    event_.state()->BlockWorker(worker);
  }

  int stream() const { return stream_; }
  int64_t id() const { return id_; }
  /// Returns the wrapped event, for the device's own streams.
  const Event& event() const { return event_; }
  bool IsOf(const FaultInjector& injector) const {
    return &injector_ == &injector;
  }

  static const Point& Of(const Event& event) {
    const auto* const point = dynamic_cast<const Point*>(event.state());
    CH_CHECK(point != nullptr) << "an event of a stream without decoration";
    return *point;
  }

 private:
  FaultInjector& injector_;
  const Event event_;
  const int stream_;
  const int64_t id_;
};

class FaultInjector::FaultyStream final : public Stream {
 public:
  FaultyStream(FaultInjector& injector, std::unique_ptr<Stream> stream,
               int index)
      : Stream(stream->name(), nullptr),
        injector_(injector),
        stream_(std::move(stream)),
        index_(index) {
    CH_CHECK(!stream_->runs_inline())
        << "faults are injected in queues: run on adversarial streams";
  }

  int index() const { return index_; }

  Event Record() override {
    Event event = stream_->Record();
    if (event.state() == nullptr) return event;
    const int64_t id = injector_.points_++;
    Log({.kind = Issue::Kind::kRecord, .stream = index_, .point = id});
    return Event(
        std::make_shared<Point>(injector_, std::move(event), index_, id));
  }

  void Wait(const Event& event) override {
    if (event.state() == nullptr) return;
    const Point& point = Point::Of(event);
    if (!point.IsOf(injector_)) return stream_->Wait(point.event());
    IssueLog& log = injector_.log_;
    const auto index = static_cast<int64_t>(log.waits.size());
    log.waits.push_back(
        {.stream = name(),
         .waits_for = log.streams[static_cast<size_t>(point.stream())],
         .for_memory = injector_.leasing_,
         .where = injector_.where_});
    if (injector_.Has(Fault::Kind::kDropWait, index)) return;
    Log({.kind = Issue::Kind::kWait,
         .stream = index_,
         .index = index,
         .point = point.id()});
    stream_->Wait(point.event());
  }

  void Synchronize() override {
    const Event end = Record();
    if (end.state() != nullptr) {
      Log({.kind = Issue::Kind::kHostWait,
           .stream = index_,
           .point = Point::Of(end).id()});
    }
    stream_->Synchronize();
  }

  AgentId agent() const override { return stream_->agent(); }

 private:
  void Enqueue(Task task) override {
    BeginTask();
    stream_->Launch(std::move(task));
  }
  void EnqueueHost(Task task) override {
    BeginTask();
    stream_->LaunchHost(std::move(task));
  }

  void BeginTask() {
    Log({.kind = Issue::Kind::kTask, .stream = index_});
    ++tasks_;
    const IssueLog::Work& late = injector_.fault_.late;
    if (late.stream != index_ || late.number != tasks_) return;
    stream_->LaunchHost([](KernelContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    });
  }

  void Log(const Issue& issue) { injector_.log_.issues.push_back(issue); }

  FaultInjector& injector_;
  const std::unique_ptr<Stream> stream_;
  const int index_;
  int64_t tasks_ = 0;
};

// Leases everything from another allocator, in the same way but for the fault.
class FaultInjector::FaultyAllocator final : public Allocator {
 public:
  FaultyAllocator(FaultInjector& injector, std::unique_ptr<Allocator> allocator)
      : injector_(injector), allocator_(std::move(allocator)) {}

  Device device() const override { return allocator_->device(); }
  int64_t reserved_bytes() const override {
    return allocator_->reserved_bytes();
  }
  void AddListener(MemoryListener& listener) override {
    allocator_->AddListener(listener);
  }
  void RemoveListener(MemoryListener& listener) override {
    allocator_->RemoveListener(listener);
  }

 private:
  struct Held {
    int64_t lease;
    const std::byte* data;
    Block block;  // Empty where it has been released early.
  };

  void Lease(Block& block, Stream& stream) override {
    IssueLog& log = injector_.log_;
    const auto lease = static_cast<int64_t>(log.leases.size());
    Stream* home = &stream;
    if (injector_.Has(Fault::Kind::kWrongStream, lease)) {
      home = injector_.streams_[static_cast<size_t>(Index(stream) + 1) %
                                injector_.streams_.size()];
    }
    // Logged before the allocator's waits, so that the log has their reason.
    log.leases.push_back({.stream = stream.name(),
                          .memory_class = block.memory_class(),
                          .bytes = block.bytes(),
                          .data = nullptr,
                          .where = injector_.where_});
    const bool nested = std::exchange(injector_.leasing_, true);
    Block leased =
        allocator_->Allocate(block.bytes(), block.memory_class(), *home);
    injector_.leasing_ = nested;
    std::byte* const data = leased.data();
    log.leases.back().data = data;
    log.issues.push_back(
        {.kind = Issue::Kind::kLease, .stream = Index(stream), .index = lease});
    SetMemory(block, data, capacity(leased));
    injector_.overlaps_ +=
        std::any_of(held_.begin(), held_.end(),
                    [&](const Held& held) { return held.data == data; });
    if (injector_.Has(Fault::Kind::kReleaseEarly, lease)) leased = Block();
    held_.push_back({lease, data, std::move(leased)});
  }

  void Return(Block& block) override {
    IssueLog& log = injector_.log_;
    const auto held =
        std::find_if(held_.begin(), held_.end(),
                     [&](const Held& h) { return h.data == block.data(); });
    CH_CHECK(held != held_.end()) << "a block that was not leased here";
    for (const MemoryUse& use : uses(block)) {
      log.leases[static_cast<size_t>(held->lease)].used_elsewhere = true;
      log.issues.push_back({.kind = Issue::Kind::kUse,
                            .stream = Index(*use.stream),
                            .index = held->lease,
                            .point = Point::Of(use.event).id()});
    }
    log.issues.push_back({.kind = Issue::Kind::kReturn,
                          .stream = Index(*home(block)),
                          .index = held->lease});
    if (injector_.Has(Fault::Kind::kForgetUses, held->lease)) {
      uses(block).clear();
    }
    uses(held->block) = std::move(uses(block));
    uses(block).clear();
    held_.erase(held);
  }

  static int Index(Stream& stream) {
    return static_cast<FaultyStream&>(stream).index();
  }

  FaultInjector& injector_;
  const std::unique_ptr<Allocator> allocator_;
  std::vector<Held> held_;  // Last: gone before the allocator.
};

std::unique_ptr<Stream> FaultInjector::Decorate(
    std::unique_ptr<Stream> stream) {
  log_.streams.push_back(stream->name());
  auto injected = std::make_unique<FaultyStream>(
      *this, std::move(stream), static_cast<int>(streams_.size()));
  streams_.push_back(injected.get());
  return injected;
}

std::unique_ptr<Allocator> FaultInjector::Decorate(
    std::unique_ptr<Allocator> allocator) {
  return std::make_unique<FaultyAllocator>(*this, std::move(allocator));
}

void FaultInjector::Write(const LogEvent& event) {
  if (event.kind != EventKind::kFsdp) return;
  where_ = absl::StrCat(event.what, " ", *event.subject);
}

}  // namespace crosshatch
