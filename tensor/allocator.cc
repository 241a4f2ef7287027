// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/allocator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

// Thread numbers are never reused, unlike thread ids and addresses.
uint64_t ThisThread() {
  static std::atomic<uint64_t> threads{0};
  thread_local constinit uint64_t number = 0;
  if (number == 0) number = ++threads;
  return number;
}

class AccountingAllocator final : public Allocator {
 public:
  Device device() const override { return Device::Meta(); }
  int64_t reserved_bytes() const override { return 0; }

 private:
  void Lease(Block&, Stream&) override {}
  void Return(Block&) override {}
};

}  // namespace

const char* Name(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kParameter:
      return "parameter";
    case MemoryClass::kGradient:
      return "gradient";
    case MemoryClass::kOptimizerState:
      return "optimizer_state";
    case MemoryClass::kActivation:
      return "activation";
    case MemoryClass::kGatheredParameter:
      return "gathered_parameter";
    case MemoryClass::kCommunication:
      return "communication";
  }
  return "unknown";
}

Block::Block(Block&& other) noexcept
    : allocator_(std::exchange(other.allocator_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      capacity_(std::exchange(other.capacity_, 0)),
      memory_class_(other.memory_class_),
      home_(std::exchange(other.home_, nullptr)),
      uses_(std::move(other.uses_)) {
  other.uses_.clear();
}

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  if (allocator_ != nullptr) allocator_->Release(*this);
  allocator_ = std::exchange(other.allocator_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  memory_class_ = other.memory_class_;
  home_ = std::exchange(other.home_, nullptr);
  uses_ = std::move(other.uses_);
  other.uses_.clear();
  return *this;
}

Block::~Block() {
  if (allocator_ != nullptr) allocator_->Release(*this);
}

void Block::UsedOn(Stream& stream) {
  if (&stream == home_ || data_ == nullptr) return;
  if (!allocator_->OnOwnThread()) return;
  Event event = stream.Record();
  if (event.state() == nullptr) return;  // Past already.
  for (MemoryUse& use : uses_) {
    if (use.stream == &stream) {
      use.event = std::move(event);
      return;
    }
  }
  uses_.push_back({&stream, std::move(event)});
}

Allocator::~Allocator() {
  CH_CHECK_EQ(leases_, 0)
      << (owner_.name.empty() ? "a context" : owner_.name) << " ends while "
      << leases_ << " blocks of " << stats_.current_total
      << " bytes in all are in use: a Tensor, or a model or optimizer that "
         "holds some, outlives the rank that made it; make it inside of the "
         "rank's function, and hand out values (Item, Tensor::ToVector) or a "
         "checkpoint";
}

Block Allocator::Allocate(int64_t bytes, MemoryClass memory_class,
                          Stream& stream) {
  CH_CHECK_GE(bytes, 0) << "size of an allocation";
  if (!OnOwnThread()) {
    uint64_t nobody = 0;
    CH_CHECK(thread_.compare_exchange_strong(nobody, ThisThread()))
        << "a thread makes tensors in the context of another thread's "
        << (owner_.name.empty() ? "own" : owner_.name)
        << ": each rank has one thread, and others a context of their own";
  }
  if (has_returned_.load(std::memory_order_relaxed)) TakeReturned();
  Block block;
  block.allocator_ = this;
  block.bytes_ = bytes;
  block.memory_class_ = memory_class;
  block.home_ = &stream;
  if (bytes > 0) Lease(block, stream);

  ++leases_;
  const auto i = static_cast<size_t>(memory_class);
  stats_.current[i] += bytes;
  stats_.peak[i] = std::max(stats_.peak[i], stats_.current[i]);
  stats_.current_total += bytes;
  stats_.peak_total = std::max(stats_.peak_total, stats_.current_total);
  if (sink_ != nullptr) Log(EventKind::kAllocate, block);
  return block;
}

bool Allocator::OnOwnThread() const {
  return thread_.load(std::memory_order_relaxed) == ThisThread();
}

void Allocator::AddListener(MemoryListener& listener) {
  listeners_.push_back(&listener);
}

void Allocator::RemoveListener(MemoryListener& listener) {
  std::erase(listeners_, &listener);
}

void Allocator::AnnounceThatMemoryGoes(const std::byte* data) const {
  for (MemoryListener* listener : listeners_) listener->MemoryGoes(data);
}

void Allocator::TakeReturned() {
  std::vector<Block> returned;
  const std::lock_guard<std::mutex> lock(mutex_);
  returned.swap(returned_);
  has_returned_.store(false, std::memory_order_relaxed);
  for (Block& block : returned) ReleaseHere(block);
}

void Allocator::Retire(std::unique_ptr<Allocator> allocator) {
  allocator->TakeReturned();
  Allocator* ending = nullptr;
  {
    const std::lock_guard<std::mutex> lock(allocator->mutex_);
    for (Block& block : allocator->returned_) allocator->ReleaseHere(block);
    allocator->returned_.clear();
    allocator->retired_ = true;
    allocator->sink_ = nullptr;
    // Otherwise the last of its blocks destroys it.
    Allocator* const retired = allocator.release();
    if (retired->leases_ == 0) ending = retired;
  }
  delete ending;
}

void Allocator::Release(Block& block) {
  if (OnOwnThread() && !retired_) {
    ReleaseHere(block);
  } else {
    ReleaseElsewhere(block);
  }
}

void Allocator::ReleaseElsewhere(Block& block) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!retired_) {
      returned_.push_back(std::move(block));
      has_returned_.store(true, std::memory_order_relaxed);
      return;
    }
    ReleaseHere(block);
    if (leases_ > 0) return;
  }
  delete this;
}

void Allocator::ReleaseHere(Block& block) {
  if (sink_ != nullptr) Log(EventKind::kRelease, block);
  --leases_;
  stats_.current[static_cast<size_t>(block.memory_class_)] -= block.bytes_;
  stats_.current_total -= block.bytes_;
  if (block.bytes_ > 0) Return(block);
  block.allocator_ = nullptr;
}

void Allocator::Reclassify(Block& block, MemoryClass memory_class) {
  if (block.allocator_ != this || block.memory_class_ == memory_class) return;
  stats_.current[static_cast<size_t>(block.memory_class_)] -= block.bytes_;
  block.memory_class_ = memory_class;
  const auto i = static_cast<size_t>(memory_class);
  stats_.current[i] += block.bytes_;
  stats_.peak[i] = std::max(stats_.peak[i], stats_.current[i]);
}

void Allocator::Log(EventKind kind, const Block& block) const {
  const std::string memory_class = Name(block.memory_class_);
  const char* const what = kind == EventKind::kAllocate
                               ? (of_host_ ? "allocate_host" : "allocate")
                               : (of_host_ ? "release_host" : "release");
  sink_->Write({
      .kind = kind,
      .what = what,
      .subject = &memory_class,
      .where = &block.home_->name(),
      .bytes = block.bytes_,
  });
}

void Allocator::ResetPeaks() {
  stats_.peak = stats_.current;
  stats_.peak_total = stats_.current_total;
}

void Allocator::FailOutOfMemory(int64_t bytes, int64_t given_back) const {
  std::ostringstream by_class;
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    const auto c = static_cast<size_t>(i);
    by_class << ", " << Name(static_cast<MemoryClass>(i)) << " "
             << stats_.current[c] << " (peak " << stats_.peak[c] << ")";
  }
  CH_CHECK(false) << "out of memory: " << bytes << " bytes more than the "
                  << reserved_bytes() << " held on " << device()
                  << ", of which " << stats_.current_total << " (peak "
                  << stats_.peak_total << ") are in use" << by_class.str()
                  << "; " << given_back
                  << " bytes of free blocks were given back before";
  __builtin_unreachable();
}

std::unique_ptr<Allocator> MakeAccountingAllocator() {
  return std::make_unique<AccountingAllocator>();
}

namespace {

constexpr int64_t kSmall = 512;

// Sizes are rounded up to bins: multiples of 64 up to 512 bytes, then eight
// steps from each power of two to the next, so that at most an eighth of a
// block is unused.
struct Bin {
  size_t index;
  int64_t bytes;
};

Bin BinOf(int64_t bytes) {
  if (bytes <= kSmall) {
    const int64_t steps = (bytes + 63) / 64;
    return {static_cast<size_t>(steps - 1), steps * 64};
  }
  // 2^k < bytes <= 2^(k+1), k >= 9.
  const int k = std::bit_width(static_cast<uint64_t>(bytes - 1)) - 1;
  const int64_t step = int64_t{1} << (k - 3);
  const int64_t steps = (bytes + step - 1) / step;  // 9 to 16.
  return {static_cast<size_t>(8 * (k - 8) + steps - 9), steps * step};
}

// A large block may also come from one of the next bins, of at most 1.5 times
// the size, so that a workload whose sizes never repeat reuses memory.
constexpr int64_t kLarge = int64_t{1} << 20;
constexpr size_t kBinsAboveForLarge = 4;

class CachingAllocator final : public Allocator {
 public:
  CachingAllocator(Device device, std::unique_ptr<MemorySource> source,
                   bool adversarial)
      : device_(device),
        source_(std::move(source)),
        adversarial_(adversarial) {}

  ~CachingAllocator() override {
    for (const auto& cache : caches_) {
      for (const FreeLists& lists : cache->bins) {
        for (const FreeBlock& block : lists.unused) {
          source_->Release(block.data);
        }
        for (const FreeBlock& block : lists.used) source_->Release(block.data);
      }
    }
  }

  Device device() const override { return device_; }
  int64_t reserved_bytes() const override { return reserved_bytes_; }
  int64_t ReleaseFreeMemory() override { return GiveBackFree(); }

 private:
  struct FreeBlock {
    std::byte* data;
    int64_t capacity;
    MemoryUses uses;
  };
  // The free blocks of one bin. The selection depends only on what was issued,
  // never on what has finished.
  struct FreeLists {
    std::vector<FreeBlock> unused;  // Elsewhere: the warmest one goes first.
    std::vector<FreeBlock> used;    // On other streams: the oldest goes first.
  };
  struct Cache {
    Stream* stream;
    std::vector<FreeLists> bins;
  };

  void Lease(Block& block, Stream& stream) override {
    const Bin bin = BinOf(block.bytes());
    if (!LeaseCached(block, stream, bin)) {
      std::byte* data = source_->Acquire(bin.bytes);
      if (data == nullptr) {
        const int64_t given_back = GiveBackFree();
        data = source_->Acquire(bin.bytes);
        if (data == nullptr) FailOutOfMemory(bin.bytes, given_back);
      }
      reserved_bytes_ += bin.bytes;
      SetMemory(block, data, bin.bytes);
    }
    if (adversarial_) {
      stream.Launch([source = source_.get(), data = block.data(),
                     bytes = capacity(block)](KernelContext& context) {
        source->SetAllBits(data, bytes, context);
      });
    }
  }

  bool LeaseCached(Block& block, Stream& stream, Bin bin) {
    Cache& cache = CacheOf(stream);
    const size_t last =
        bin.index + (block.bytes() >= kLarge ? kBinsAboveForLarge : 0);
    for (size_t i = bin.index; i <= last && i < cache.bins.size(); ++i) {
      FreeLists& lists = cache.bins[i];
      if (!lists.unused.empty()) {
        const FreeBlock& free = lists.unused.back();
        SetMemory(block, free.data, free.capacity);
        lists.unused.pop_back();
        return true;
      }
      if (!lists.used.empty()) {
        const FreeBlock& free = lists.used.front();
        for (const MemoryUse& use : free.uses) stream.Wait(use.event);
        SetMemory(block, free.data, free.capacity);
        lists.used.erase(lists.used.begin());
        return true;
      }
    }
    return false;
  }

  /// Returns free blocks to the source. Every user of a block issued its work
  /// to its stream before the block was returned, or recorded an event.
  /// \returns the bytes.
  int64_t GiveBackFree() {
    int64_t bytes = 0;
    for (const auto& cache : caches_) {
      if (!HasFree(*cache)) continue;
      cache->stream->Synchronize();
      for (FreeLists& lists : cache->bins) {
        for (std::vector<FreeBlock>* list : {&lists.unused, &lists.used}) {
          for (const FreeBlock& block : *list) {
            for (const MemoryUse& use : block.uses) use.event.state()->Block();
            AnnounceThatMemoryGoes(block.data);
            source_->Release(block.data);
            bytes += block.capacity;
          }
          list->clear();
        }
      }
    }
    reserved_bytes_ -= bytes;
    return bytes;
  }

  static bool HasFree(const Cache& cache) {
    return std::any_of(cache.bins.begin(), cache.bins.end(),
                       [](const FreeLists& lists) {
                         return !lists.unused.empty() || !lists.used.empty();
                       });
  }

  void Return(Block& block) override {
    const Bin bin = BinOf(capacity(block));
    Cache& cache = CacheOf(*home(block));
    if (bin.index >= cache.bins.size()) cache.bins.resize(bin.index + 1);
    FreeLists& lists = cache.bins[bin.index];
    MemoryUses& uses_of_block = uses(block);
    if (uses_of_block.empty()) {
      lists.unused.push_back({block.data(), capacity(block), {}});
    } else {
      lists.used.push_back(
          {block.data(), capacity(block), std::move(uses_of_block)});
      uses_of_block.clear();
    }
  }

  // Linear, because a rank has few streams.
  Cache& CacheOf(Stream& stream) {
    for (const auto& cache : caches_) {
      if (cache->stream == &stream) return *cache;
    }
    caches_.push_back(std::make_unique<Cache>(Cache{&stream, {}}));
    return *caches_.back();
  }

  const Device device_;
  const std::unique_ptr<MemorySource> source_;
  const bool adversarial_;
  std::vector<std::unique_ptr<Cache>> caches_;
  int64_t reserved_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Allocator> MakeCachingAllocator(
    Device device, std::unique_ptr<MemorySource> source, bool adversarial) {
  return std::make_unique<CachingAllocator>(device, std::move(source),
                                            adversarial);
}

}  // namespace crosshatch
