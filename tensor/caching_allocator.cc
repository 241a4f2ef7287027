// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace crosshatch {
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
