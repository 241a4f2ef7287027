// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/wake_word.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Two threads with x86's memory model: a store waits in its processor's buffer
/// until it reaches memory at an arbitrary time. Loads read the own buffer
/// first, then memory. A read-modify-write, a seq_cst store and a system call
/// flush the buffer. Runs the threads once for each order of their steps and of
/// the stores' arrivals.
class TwoProcessors {
 public:
  struct Word {
    Word(uint32_t value) : value(value) {}
    uint32_t load(std::memory_order) const { return machine->Load(*this); }
    void store(uint32_t to, std::memory_order order) {
      machine->Store(*this, to, order);
    }
    uint32_t exchange(uint32_t to, std::memory_order) {
      return machine->Modify(*this, [to](uint32_t) { return to; });
    }
    uint32_t fetch_add(uint32_t n, std::memory_order) {
      return machine->Modify(*this, [n](uint32_t old) { return old + n; });
    }
    uint32_t fetch_sub(uint32_t n, std::memory_order) {
      return machine->Modify(*this, [n](uint32_t old) { return old - n; });
    }
    uint32_t value;
  };
  // The system functions of a BasicWakeWord.
  static void Sleep(Word& word, uint32_t value) {
    machine->SleepWhile(word, value);
  }
  static void WakeAll(Word& word) { machine->WakeSleepers(word); }

  struct Result {
    int orders = 0;
    /// The runs that end with a sleeping thread.
    int stuck = 0;
  };
  /// \param run returns the two threads' functions, on new words
  Result Explore(
      const std::function<std::array<std::function<void()>, 2>()>& run) {
    machine = this;
    Result result;
    do {
      RunOnce(run());
      ++result.orders;
      if (is_stuck_) ++result.stuck;
    } while (NextOrder());
    return result;
  }

 private:
  enum class State : uint8_t { kRuns, kReady, kSleeps, kDone };
  struct Processor {
    State state = State::kRuns;
    std::deque<std::pair<Word*, uint32_t>> stores;
    const Word* sleeps_on = nullptr;
  };
  struct Choice {
    size_t taken;
    size_t of;
  };

  void RunOnce(const std::array<std::function<void()>, 2>& functions) {
    processors_ = {};
    is_stuck_ = false;
    next_ = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([this, i, &functions] {
        me = i;
        functions[i]();
        std::lock_guard lock(mutex_);
        processors_[i].state = State::kDone;
        changed_.notify_all();
      });
    }
    while (TakeStep()) continue;
    for (std::thread& thread : threads) thread.join();
  }

  /// Executes one step of one thread, or the arrival of one store.
  bool TakeStep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      return processors_[0].state != State::kRuns &&
             processors_[1].state != State::kRuns;
    });
    std::vector<std::function<void()>> steps;
    for (Processor& processor : processors_) {
      if (processor.state == State::kReady) {
        steps.emplace_back([&] { processor.state = State::kRuns; });
      }
      if (!processor.stores.empty()) {
        steps.emplace_back([&] { Arrive(processor); });
      }
    }
    if (steps.empty()) {
      bool any = false;
      for (Processor& processor : processors_) {
        if (processor.state != State::kSleeps) continue;
        // It would sleep indefinitely; the test has to end.
        is_stuck_ = any = true;
        processor.state = State::kReady;
      }
      return any;
    }
    if (next_ == choices_.size()) choices_.push_back({0, steps.size()});
    steps[choices_[next_++].taken]();
    changed_.notify_all();
    return true;
  }

  /// Selects the next sequence of choices, depth first.
  bool NextOrder() {
    while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().of)
      choices_.pop_back();
    if (choices_.empty()) return false;
    ++choices_.back().taken;
    return true;
  }

  // Each waits for the calling thread's turn.
  uint32_t Load(const Word& word) {
    std::unique_lock lock = Turn();
    const Processor& self = processors_[me];
    for (auto it = self.stores.rbegin(); it != self.stores.rend(); ++it) {
      if (it->first == &word) return it->second;
    }
    return word.value;
  }
  void Store(Word& word, uint32_t to, std::memory_order order) {
    std::unique_lock lock = Turn();
    processors_[me].stores.emplace_back(&word, to);
    if (order == std::memory_order_seq_cst) Empty(processors_[me]);
  }
  uint32_t Modify(Word& word, const std::function<uint32_t(uint32_t)>& change) {
    std::unique_lock lock = Turn();
    Empty(processors_[me]);
    return std::exchange(word.value, change(word.value));
  }
  void SleepWhile(const Word& word, uint32_t value) {
    std::unique_lock lock = Turn();
    Processor& self = processors_[me];
    Empty(self);
    if (word.value != value) return;
    self.sleeps_on = &word;
    self.state = State::kSleeps;
    changed_.notify_all();
    changed_.wait(lock, [&] { return self.state == State::kRuns; });
  }
  void WakeSleepers(const Word& word) {
    std::unique_lock lock = Turn();
    Empty(processors_[me]);
    for (Processor& processor : processors_) {
      if (processor.state == State::kSleeps && processor.sleeps_on == &word) {
        processor.state = State::kReady;
      }
    }
  }

  std::unique_lock<std::mutex> Turn() {
    std::unique_lock lock(mutex_);
    Processor& self = processors_[me];
    self.state = State::kReady;
    changed_.notify_all();
    changed_.wait(lock, [&] { return self.state == State::kRuns; });
    return lock;
  }
  static void Arrive(Processor& processor) {
    processor.stores.front().first->value = processor.stores.front().second;
    processor.stores.pop_front();
  }
  static void Empty(Processor& processor) {
    while (!processor.stores.empty()) Arrive(processor);
  }

  static inline TwoProcessors* machine = nullptr;
  static inline thread_local size_t me = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Processor, 2> processors_;
  std::vector<Choice> choices_;
  size_t next_ = 0;
  bool is_stuck_ = false;
};

/// The implementation of libstdc++ 12, after spinning.
template <std::memory_order order>
class StoringWord {
 public:
  void Change(uint32_t to) { word_.store(to, order); }
  void Wake() {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      TwoProcessors::WakeAll(word_);
    }
  }
  void WaitWhile(uint32_t old) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_acquire) == old) {
      TwoProcessors::Sleep(word_, old);
    }
    sleepers_.fetch_sub(1, std::memory_order_release);
  }

 private:
  TwoProcessors::Word word_{0};
  TwoProcessors::Word sleepers_{0};
};

template <typename Word>
TwoProcessors::Result ExploreAChangeAndAWait() {
  TwoProcessors machine;
  std::unique_ptr<Word> word;
  return machine.Explore([&]() -> std::array<std::function<void()>, 2> {
    word = std::make_unique<Word>();
    return {[&] {
              word->Change(1);
              word->Wake();
            },
            [&] { word->WaitWhile(0); }};
  });
}

TEST(WakeWordTest, NoOrderOfStepsLosesAWake) {
  const auto result = ExploreAChangeAndAWait<BasicWakeWord<TwoProcessors>>();
  EXPECT_GT(result.orders, 10);
  EXPECT_EQ(result.stuck, 0) << "of " << result.orders;
}

TEST(WakeWordTest, TheModelFindsTheWakeThatAStoreLoses) {
  EXPECT_GT(
      ExploreAChangeAndAWait<StoringWord<std::memory_order_release>>().stuck,
      0);
  EXPECT_EQ(
      ExploreAChangeAndAWait<StoringWord<std::memory_order_seq_cst>>().stuck,
      0);
}

struct Forgetful : Machine {
  static void WakeAll(Word&) {}
};

TEST(WakeWordTest, ALostWakeCostsAMoment) {
  BasicWakeWord<Forgetful> word;
  std::thread sleeper([&] { word.WaitWhile(0); });
  std::this_thread::sleep_for(milliseconds(20));
  const auto begin = std::chrono::steady_clock::now();
  word.Change(1);
  word.Wake();
  sleeper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
}

struct Counting : Machine {
  static void WakeAll(Word& word) {
    ++calls;
    Machine::WakeAll(word);
  }
  static inline int calls = 0;
};

TEST(WakeWordTest, WakesNobodyByNoCall) {
  BasicWakeWord<Counting> word;
  word.Change(1);
  word.Wake();
  word.WaitWhile(0);
  word.Change(2);
  word.Wake();
  EXPECT_EQ(Counting::calls, 0);
  EXPECT_TRUE(word.SpinWhile(1));
  EXPECT_FALSE(word.SpinWhile(2));
}

struct Yielding : Machine {
  static std::chrono::nanoseconds Yield() {
    ++yields;
    return time;
  }
  static inline int yields = 0;
  static inline std::chrono::nanoseconds time{1000};
};

TEST(WakeWordTest, YieldsUntilAYieldTakesLong) {
  BasicWakeWord<Yielding> word;
  const auto yields = [&word] {
    Yielding::yields = 0;
    EXPECT_FALSE(word.SpinWhile(0));
    return Yielding::yields;
  };
  const int often = yields();
  EXPECT_GT(often, 1);
  Yielding::time = milliseconds(3);
  EXPECT_EQ(yields(), 1);
  for (int call = 0; call < 1000; ++call) ASSERT_EQ(yields(), 0);
  Yielding::time = std::chrono::microseconds(1);
  EXPECT_EQ(yields(), often);
}

/// A lost wake hangs the test.
struct WithoutBound : Machine {
  static void Sleep(Word& word, uint32_t value) {
    FutexSleep(word, value, hours(1), FutexScope::kThisProcess);
  }
};

// The nightly run has a thousand times as many rounds.
TEST(WakeWordTest, NoWakeIsLostInManyRounds) {
  const char* const variable = std::getenv("CROSSHATCH_WAKE_ROUNDS");
  const auto rounds =
      static_cast<uint32_t>(variable == nullptr ? 20000 : std::atoll(variable));
  BasicWakeWord<WithoutBound> ping, pong;
  std::thread other([&] {
    for (uint32_t i = 0; i < rounds; ++i) {
      ping.WaitWhile(i);
      pong.Change(i + 1);
      pong.Wake();
    }
  });
  for (uint32_t i = 0; i < rounds; ++i) {
    ping.Change(i + 1);
    ping.Wake();
    pong.WaitWhile(i);
  }
  other.join();
  EXPECT_EQ(pong.Get(), rounds);
}

}  // namespace
}  // namespace crosshatch::internal
