// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/fiber.h"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#endif

namespace crosshatch::emulation {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr size_t kStacksPerSlab = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kSlabBytes = kStackBytes * kStacksPerSlab;
static_assert(kSlabBytes % kHugePageBytes == 0);

// The stacks of fibers start at different cache lines. If all started at the
// end of a page, they would compete for a few lines; a turn uses at least nine.
constexpr size_t kLineBytes = 64;
constexpr size_t kFirstLines = 61;
constexpr size_t kLinesOfTurn = 9;

// The value at the end of a stack that did not overflow.
constexpr uint64_t kMark = 0x5ACCED57ACCE5500u;

}  // namespace

/// Unused stacks of one thread of the process. They are adjacent in huge pages,
/// because the threads of a block switch too often for small ones.
class Fiber::Stacks {
 public:
  ~Stacks() {
    for (void* slab : slabs_) {
      // The process may map this range again, so unpoison it.
      ASAN_UNPOISON_MEMORY_REGION(slab, kSlabBytes);
      munmap(slab, kSlabBytes);
    }
  }

  std::byte* Take() {
    if (unused_.empty()) AddSlab();
    std::byte* const stack = unused_.back();
    unused_.pop_back();
    return stack;
  }
  void GiveBack(std::byte* stack) { unused_.push_back(stack); }

 private:
  void AddSlab() {
    void* const memory =
        mmap(nullptr, kSlabBytes + kHugePageBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CH_CHECK(memory != MAP_FAILED) << "no memory for the stacks of fibers";
    // Unmap what is outside of whole huge pages.
    auto* const start = static_cast<std::byte*>(memory);
    const size_t before =
        (kHugePageBytes - reinterpret_cast<uintptr_t>(start) % kHugePageBytes) %
        kHugePageBytes;
    if (before > 0) munmap(start, before);
    std::byte* const slab = start + before;
    munmap(slab + kSlabBytes, kHugePageBytes - before);
    madvise(slab, kSlabBytes, MADV_HUGEPAGE);
    slabs_.push_back(slab);
    for (size_t i = 0; i < kStacksPerSlab; ++i) {
      unused_.push_back(slab + i * kStackBytes);
    }
  }

  std::vector<void*> slabs_;
  std::vector<std::byte*> unused_;
};

// Shared, because fibers that the thread keeps may be destroyed later.
const std::shared_ptr<Fiber::Stacks>& Fiber::StacksOfThread() {
  static thread_local const auto stacks = std::make_shared<Stacks>();
  return stacks;
}

struct Fiber::Entry {
  // Never returns, so AddressSanitizer must not expect its frame to end.
  [[gnu::no_sanitize_address]] static void Run(transfer_t from) {
    auto* const self = static_cast<Fiber*>(from.data);
    self->Arrive(from.fctx);
    self->run_(self->argument_);
    self->ended_ = true;
    Fiber* const next = std::exchange(self->successor_, nullptr);
    if (next == nullptr) {
      self->switching_.BeforeLeaving();
      jump_fcontext(self->resumer_, self);
    } else {
      next->passer_ = self;
      self->switching_.BeforePassing(next->switching_, next->stack_);
      jump_fcontext(next->context_, next);
    }
  }
};

Fiber::Fiber() : stacks_(StacksOfThread()), stack_(stacks_->Take()) {
  static thread_local size_t fibers = 0;
  const size_t offset = kLinesOfTurn * ++fibers % kFirstLines * kLineBytes;
  top_ = stack_ + kStackBytes - offset;
  mark_ = stack_ + offset;
  std::memcpy(mark_, &kMark, sizeof(kMark));
}

Fiber::~Fiber() {
  CH_CHECK(ended_) << "a fiber goes while its function is in the middle";
  stacks_->GiveBack(stack_);
}

void Fiber::Begin(void (*run)(void*), void* argument) {
  CH_CHECK(ended_) << "a fiber begins while its function is in the middle";
  run_ = run;
  argument_ = argument;
  ended_ = false;
  context_ =
      make_fcontext(top_, static_cast<size_t>(top_ - stack_), &Entry::Run);
}

void Fiber::Resume() {
  passer_ = nullptr;
  switching_.BeforeResume(stack_);
  const transfer_t from = jump_fcontext(context_, this);
  switching_.AfterResume();
  static_cast<Fiber*>(from.data)->context_ = from.fctx;
}

void Fiber::Yield() {
  switching_.BeforeLeaving();
  Arrive(jump_fcontext(resumer_, this).fctx);
}

}  // namespace crosshatch::emulation
