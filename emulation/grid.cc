// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/grid.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/emulation/async_copies.h"
#include "crosshatch/emulation/fiber.h"
#include "crosshatch/emulation/kernel_probe.h"
#include "crosshatch/emulation/shared_arena.h"
#include "crosshatch/emulation/traffic.h"

namespace crosshatch::emulation {

thread_local constinit Dim3 thread_index = {0, 0, 0};
thread_local constinit Dim3 block_index = {0, 0, 0};
thread_local constinit Dim3 block_size;
thread_local constinit Dim3 grid_size;
thread_local constinit bool* has_accessed_memory = nullptr;
thread_local constinit AsyncCopies* async_copies = nullptr;

namespace {

std::string Show(const Dim3& at) {
  return absl::StrCat("(", at.x, ", ", at.y, ", ", at.z, ")");
}
std::string Show(Place place) {
  return absl::StrCat(place.file, ":", place.line);
}
int64_t Volume(const Dim3& size) { return int64_t{size.x} * size.y * size.z; }
Dim3 At(int64_t number, const Dim3& size) {
  return {static_cast<unsigned>(number % size.x),
          static_cast<unsigned>(number / size.x % size.y),
          static_cast<unsigned>(number / size.x / size.y)};
}

const char* NameOf(WarpOp op) {
  switch (op) {
    case WarpOp::kSync:
      return "__syncwarp";
    case WarpOp::kShuffle:
      return "a shuffle";
    case WarpOp::kBallot:
      return "a vote";
  }
  return "";
}

/// Shuffles by a seed; 0 keeps the order.
class Order {
 public:
  explicit Order(uint64_t seed) : state_(seed) {}

  void Shuffle(std::vector<int>& items) {
    if (state_ == 0) return;
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[Next() % i]);
    }
  }

 private:
  // Xorshift: a nonzero seed never becomes 0.
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

  uint64_t state_;
};

enum class State : uint8_t { kReady, kAtBarrier, kAtWarpOp, kEnded };

struct Thread {
  State state = State::kReady;
  int number = 0;
  Dim3 index;
  std::unique_ptr<Fiber> fiber;  // Null before the start and after the end.
  Place place = {};
  // The warp op that the thread waits in.
  WarpOp op = WarpOp::kSync;
  unsigned mask = 0;
  uint64_t value = 0;
  int from = 0;
  uint64_t result = 0;
  bool has_accessed_memory = false;
  AsyncCopies copies;
};

/// The lanes that have arrived at a warp op with one mask.
struct Gathering {
  unsigned mask = 0;  // 0 if unused.
  unsigned arrived = 0;
};
struct Warp {
  // Masks that are in use at one time are disjoint.
  std::vector<Gathering> gatherings;
  int lanes = 0;
  int ready = 0;  // Runnable lanes.
};

class Grid {
 public:
  Grid(const Launch& launch, absl::FunctionRef<void()> thread)
      : launch_(launch),
        run_(thread),
        order_(launch.seed == 0 ? 0 : launch.seed * 0x9E3779B97F4A7C15u | 1) {}

  void Run();

  void SyncThreads(Place place);
  uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int from,
                        Place place);
  int lane() const { return current_->number % kWarpSize; }
  void* Shared(const void* tag, size_t bytes, size_t alignment);
  size_t dynamic_shared_bytes() const { return launch_.dynamic_shared_bytes; }
  const char* Where() {
    where_ = absl::StrCat("kernel ", launch_.kernel, ", block ",
                          emulation::Show(block_index), ", thread ",
                          current_ == nullptr ? "none" : Show(*current_));
    return where_.c_str();
  }

 private:
  // Runs a thread on a fiber, then threads that start where it ends.
  static void RunThreads(void* grid) {
    Grid& self = *static_cast<Grid*>(grid);
    do self.run_();
    while (self.EndTurn());
  }

  std::string Show(const Thread& thread) const {
    return emulation::Show(thread.index);
  }

  void RunBlock();
  void RunWarp(size_t warp);
  Warp& WarpOf(const Thread& thread) {
    return warps_[static_cast<size_t>(thread.number) / kWarpSize];
  }
  /// Returns the next runnable lane of the running warp, or null.
  Thread* NextLane();
  void BeginTurn(Thread& thread);
  /// Ends the current thread.
  /// \returns whether the next one begins on its fiber.
  bool EndTurn();
  // Inlined: see Fiber::PassTo.
  [[gnu::always_inline]] void Wait(Thread& thread, State state, Place place) {
    thread.state = state;
    thread.place = place;
    --warp_->ready;
    Thread* const next = NextLane();
    if (next == nullptr) {
      thread.fiber->Yield();
    } else {
      BeginTurn(*next);
      thread.fiber->PassTo(*next->fiber);
    }
  }
  void Complete(unsigned mask);
  [[noreturn]] void FailMask(WarpOp op, unsigned mask, int from, Place place);
  [[noreturn]] void FailStuck() const;
  std::string WhatKeeps(const Thread& waiting, const Thread& other) const;

  const Launch& launch_;
  const absl::FunctionRef<void()> run_;
  Order order_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Fiber>> idle_;
  Thread* current_ = nullptr;
  // Of the block.
  size_t at_barrier_ = 0;
  size_t ended_ = 0;
  size_t turns_ = 0;
  // The running warp, its threads in the order of their turns, and the index of
  // the next turn.
  Warp* warp_ = nullptr;
  std::vector<int> lanes_;
  size_t next_ = 0;
  std::string where_;
};

thread_local constinit Grid* current_grid = nullptr;

// Kept from one launch to the next.
SharedArena& Arena() {
  static thread_local const std::unique_ptr<SharedArena> arena =
      std::make_unique<SharedArena>();
  return *arena;
}
std::vector<std::unique_ptr<Fiber>>& IdleFibers() {
  static thread_local std::vector<std::unique_ptr<Fiber>> fibers;
  return fibers;
}

[[noreturn, gnu::cold]] void FailOutside(const char* what) {
  CH_CHECK(false) << what << " outside of a kernel";
  __builtin_unreachable();
}

inline Grid& Current(const char* what) {
  if (current_grid == nullptr) [[unlikely]]
    FailOutside(what);
  return *current_grid;
}

void CheckLaunch(const Launch& launch) {
  const auto fits = [&](const Dim3& size, int64_t x, int64_t y, int64_t z) {
    return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= x &&
           size.y <= y && size.z <= z;
  };
  CH_CHECK(fits(launch.grid, (int64_t{1} << 31) - 1, 65535, 65535))
      << "kernel " << launch.kernel << ": a grid of " << Show(launch.grid);
  CH_CHECK(fits(launch.block, kMaxThreadsPerBlock, kMaxThreadsPerBlock, 64) &&
           Volume(launch.block) <= kMaxThreadsPerBlock)
      << "kernel " << launch.kernel << ": a block of " << Show(launch.block);
  CH_CHECK_LE(launch.dynamic_shared_bytes, kMaxOptInSharedBytes)
      << "kernel " << launch.kernel;
}

void Grid::Run() {
  CheckLaunch(launch_);
  CH_CHECK(current_grid == nullptr)
      << "kernel " << launch_.kernel << " is launched by a kernel";
  current_grid = this;
  BeginKernel(launch_.code);
  block_size = launch_.block;
  grid_size = launch_.grid;
  idle_.swap(IdleFibers());
  threads_.resize(static_cast<size_t>(Volume(launch_.block)));
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i].number = static_cast<int>(i);
    threads_[i].index = At(static_cast<int64_t>(i), launch_.block);
  }
  warps_.resize((threads_.size() + kWarpSize - 1) / kWarpSize);
  for (const Thread& thread : threads_) ++WarpOf(thread).lanes;
  // If there are many blocks, only pieces of 1024 of them are shuffled.
  const int64_t blocks = Volume(launch_.grid);
  std::vector<int> piece;
  for (int64_t first = 0; first < blocks; first += 1024) {
    piece.resize(static_cast<size_t>(std::min<int64_t>(1024, blocks - first)));
    for (size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<int>(i);
    order_.Shuffle(piece);
    for (int block : piece) {
      block_index = At(first + block, launch_.grid);
      RunBlock();
    }
  }
  idle_.swap(IdleFibers());
  has_accessed_memory = nullptr;
  async_copies = nullptr;
  current_grid = nullptr;
  NoteKernel(launch_.kernel);
}

void Grid::RunBlock() {
  Arena().Begin();
  TrafficBlock traffic;
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
    thread.has_accessed_memory = false;
    thread.copies.Drop();
  }
  for (Warp& warp : warps_) warp.ready = warp.lanes;
  at_barrier_ = 0;
  ended_ = 0;
  std::vector<int> warps(warps_.size());
  std::iota(warps.begin(), warps.end(), 0);
  while (ended_ < threads_.size()) {
    order_.Shuffle(warps);
    turns_ = 0;
    for (int warp : warps) RunWarp(static_cast<size_t>(warp));
    if (turns_ == 0) FailStuck();
  }
}

// Runs a warp as far as possible, so that data which its lanes exchange stays
// in the nearest cache. A lane that waits or ends passes the turn to the next
// one.
void Grid::RunWarp(size_t warp) {
  warp_ = &warps_[warp];
  if (warp_->ready == 0) return;
  lanes_.resize(static_cast<size_t>(warp_->lanes));
  std::iota(lanes_.begin(), lanes_.end(), static_cast<int>(warp * kWarpSize));
  order_.Shuffle(lanes_);
  next_ = 0;
  Thread& first = *NextLane();
  BeginTurn(first);
  first.fiber->Resume();
  current_ = nullptr;
}

Thread* Grid::NextLane() {
  if (warp_->ready == 0) return nullptr;
  for (;;) {
    if (next_ == lanes_.size()) {
      order_.Shuffle(lanes_);
      next_ = 0;
    }
    Thread& thread = threads_[static_cast<size_t>(lanes_[next_++])];
    if (thread.state == State::kReady) return &thread;
  }
}

void Grid::BeginTurn(Thread& thread) {
  ++turns_;
  current_ = &thread;
  thread_index = thread.index;
  has_accessed_memory = &thread.has_accessed_memory;
  async_copies = &thread.copies;
  TrafficBlock::SetThread(thread.number);
  if (thread.fiber != nullptr) return;
  if (idle_.empty()) idle_.push_back(std::make_unique<Fiber>());
  thread.fiber = std::move(idle_.back());
  idle_.pop_back();
  thread.fiber->Begin(&RunThreads, this);
}

bool Grid::EndTurn() {
  Thread& self = *current_;
  CH_CHECK(!self.copies.Drop())
      << Where() << " ends without a wait for its asynchronous copies";
  self.state = State::kEnded;
  ++ended_;
  --warp_->ready;
  Thread* const next = NextLane();
  if (next != nullptr && next->fiber == nullptr) {
    next->fiber = std::move(self.fiber);
    BeginTurn(*next);
    return true;
  }
  if (next != nullptr) {
    BeginTurn(*next);
    self.fiber->PassAtEnd(*next->fiber);
  }
  // The fiber is reused only after its function has ended.
  idle_.push_back(std::move(self.fiber));
  return false;
}

void Grid::SyncThreads(Place place) {
  if (IsBarrierLeftOut(place.file, place.line)) return;
  Thread& self = *current_;
  if (++at_barrier_ < threads_.size()) {
    Wait(self, State::kAtBarrier, place);
    return;
  }
  // The last thread to arrive continues; all others wait.
  at_barrier_ = 0;
  for (Thread& other : threads_) {
    other.has_accessed_memory = false;
    if (&other == &self) continue;
    CH_CHECK(other.place.line == place.line &&
             (other.place.file == place.file ||
              std::strcmp(other.place.file, place.file) == 0))
        << Where() << " waits at __syncthreads of " << emulation::Show(place)
        << ", but thread " << Show(other) << " at that of "
        << emulation::Show(other.place);
    other.state = State::kReady;
  }
  for (Warp& warp : warps_) warp.ready = warp.lanes;
}

[[gnu::always_inline]] inline uint64_t Grid::WarpExchange(
    WarpOp op, unsigned mask, uint64_t value, int from, Place place) {
  Thread& self = *current_;
  const unsigned bit = 1u << lane();
  const bool is_lane =
      from >= 0 && from < kWarpSize && (mask >> from & 1u) != 0;
  if ((mask & bit) == 0 || (op == WarpOp::kShuffle && !is_lane)) [[unlikely]] {
    FailMask(op, mask, from, place);
  }
  self.op = op;
  self.mask = mask;
  self.value = value;
  self.from = from;
  self.place = place;
  Warp& warp = *warp_;
  Gathering* gathering = nullptr;
  for (Gathering& one : warp.gatherings) {
    if (one.mask == mask) gathering = &one;
  }
  if (gathering == nullptr) {
    warp.gatherings.push_back({mask, 0});
    gathering = &warp.gatherings.back();
  }
  gathering->arrived |= bit;
  if (gathering->arrived != mask) {
    Wait(self, State::kAtWarpOp, place);
  } else {
    *gathering = warp.gatherings.back();
    warp.gatherings.pop_back();
    Complete(mask);
  }
  return self.result;
}

void Grid::FailMask(WarpOp op, unsigned mask, int from, Place place) {
  CH_CHECK((mask >> lane() & 1u) != 0)
      << Where() << ": " << NameOf(op) << " at " << emulation::Show(place)
      << " with a mask of " << absl::StrCat(absl::Hex(mask))
      << ", which leaves out the lane itself, " << lane();
  CH_CHECK(false) << Where() << ": a shuffle at " << emulation::Show(place)
                  << " takes from lane " << from << ", which the mask of "
                  << absl::StrCat(absl::Hex(mask)) << " leaves out";
  __builtin_unreachable();
}

void Grid::Complete(unsigned mask) {
  const Thread& self = *current_;
  const auto first = static_cast<size_t>(self.number - lane());
  uint64_t ballot = 0;
  for (unsigned left = mask; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const Thread& other = threads_[first + static_cast<size_t>(lane)];
    CH_CHECK(other.op == self.op)
        << Where() << " comes to " << NameOf(self.op) << " at "
        << emulation::Show(self.place) << ", but thread " << Show(other)
        << " of its warp to " << NameOf(other.op) << " at "
        << emulation::Show(other.place);
    if (other.value != 0) ballot |= uint64_t{1} << lane;
  }
  for (unsigned left = mask; left != 0; left &= left - 1) {
    Thread& other =
        threads_[first + static_cast<size_t>(std::countr_zero(left))];
    other.result = self.op == WarpOp::kShuffle
                       ? threads_[first + static_cast<size_t>(other.from)].value
                       : ballot;
    if (mask == ~0u) other.has_accessed_memory = false;
    if (&other != &self) other.state = State::kReady;
  }
  warp_->ready += std::popcount(mask) - 1;
}

std::string Grid::WhatKeeps(const Thread& waiting, const Thread& other) const {
  std::string what = absl::StrCat("thread ", Show(other));
  switch (other.state) {
    case State::kEnded:
      return absl::StrCat(what, " has ended");
    case State::kAtBarrier:
      return absl::StrCat(what, " waits at __syncthreads of ",
                          emulation::Show(other.place));
    default:
      return absl::StrCat(
          what, " waits in ", NameOf(other.op), " of ",
          emulation::Show(other.place), " with a mask of ",
          absl::Hex(other.mask),
          other.mask == waiting.mask ? "" : ", which is another");
  }
}

// No thread can continue: name a waiting thread and one that it waits for.
void Grid::FailStuck() const {
  const Thread& waiting = *std::find_if(
      threads_.begin(), threads_.end(),
      [](const Thread& one) { return one.state != State::kEnded; });
  std::string text = absl::StrCat("kernel ", launch_.kernel, ", block ",
                                  emulation::Show(block_index), ", thread ",
                                  Show(waiting), " waits ");
  const auto is_missing = [&](const Thread& other) {
    if (waiting.state == State::kAtBarrier) {
      return other.state != State::kAtBarrier;
    }
    return other.number / kWarpSize == waiting.number / kWarpSize &&
           ((waiting.mask >> (other.number % kWarpSize)) & 1u) != 0 &&
           (other.state != State::kAtWarpOp || other.mask != waiting.mask);
  };
  const auto missing =
      std::find_if(threads_.begin(), threads_.end(), is_missing);
  if (waiting.state == State::kAtBarrier) {
    absl::StrAppend(&text, "at __syncthreads of ",
                    emulation::Show(waiting.place));
  } else {
    absl::StrAppend(&text, "in ", NameOf(waiting.op), " of ",
                    emulation::Show(waiting.place), " with a mask of ",
                    absl::Hex(waiting.mask));
  }
  absl::StrAppend(&text, " and never goes on: ",
                  missing == threads_.end()
                      ? "the mask names lanes that the block does not have"
                      : WhatKeeps(waiting, *missing));
  CH_CHECK(false) << text;
  __builtin_unreachable();
}

void* Grid::Shared(const void* tag, size_t bytes, size_t alignment) {
  return Arena().Find(tag, bytes, alignment);
}

}  // namespace

void RunGrid(const Launch& launch, absl::FunctionRef<void()> thread) {
  Grid(launch, thread).Run();
}

void SyncThreads(Place place) { Current("__syncthreads").SyncThreads(place); }

uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int from,
                      Place place) {
  return Current(NameOf(op)).WarpExchange(op, mask, value, from, place);
}

void CheckConverged() {
  CH_CHECK(!*has_accessed_memory)
      << WhereInGrid()
      << ": a matrix instruction after an access of memory, without a barrier "
         "of the warp, whose lanes may have diverged";
}

int Lane() { return Current("a lane's number").lane(); }

void WaitForCopies(size_t groups, Place place) {
  Current("a wait for copies");
  if (IsBarrierLeftOut(place.file, place.line)) return;
  async_copies->Wait(groups);
}

void* SharedMemory(const void* tag, size_t bytes, size_t alignment) {
  return Current("shared memory").Shared(tag, bytes, alignment);
}

void* DynamicSharedMemory() {
  Grid& grid = Current("shared memory");
  return grid.Shared(nullptr, grid.dynamic_shared_bytes(), 16);
}

void FailMisaligned(const void* address, size_t bytes) {
  CH_CHECK(false) << WhereInGrid() << ": an access of " << bytes << " bytes at "
                  << address << ", which is not aligned";
  __builtin_unreachable();
}

void FailOutOfReach(const void* address, size_t bytes) {
  CH_CHECK(false) << WhereInGrid() << ": an access of " << bytes << " bytes at "
                  << address
                  << ", which are not all of one allocation of the device, of "
                     "a peer, or of pinned memory of the host";
  __builtin_unreachable();
}

const char* WhereInGrid() {
  return current_grid == nullptr ? "" : current_grid->Where();
}

}  // namespace crosshatch::emulation
