// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/adversarial_delays.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/threads.h"

namespace crosshatch {
namespace {

class InlineStream final : public Stream {
 public:
  InlineStream(std::string name, KernelContext* context)
      : Stream(std::move(name), context) {}

  Event Record() override { return Event(); }

  void Wait(const Event& event) override {
    if (event.state() != nullptr) event.state()->Block();
  }

  void Synchronize() override {}

 private:
  void Enqueue(Task) override {}  // Launch runs inline.
};

/// The part of a queue that it shares with its events and that may outlive it.
class Progress {
 public:
  Progress(const std::string& stream, const RankParts& options)
      : stream_(stream),
        wait_graph_(options.wait_graph),
        host_agent_(options.host_agent),
        agent_(wait_graph_ == nullptr
                   ? kNoAgent
                   : wait_graph_->AddAgent(options.rank,
                                           absl::StrCat("stream ", stream),
                                           options.host_agent)) {}

  AgentId agent() const { return agent_; }
  AgentId host_agent() const { return host_agent_; }
  WaitGraph* wait_graph() const { return wait_graph_; }
  std::mutex& mutex() { return mutex_; }

  bool Reached(int64_t point) const {
    return done_.load(std::memory_order_acquire) >= point;
  }

  /// Blocks `waiter`, the calling thread, until `point` tasks are done.
  void BlockUntil(int64_t point, AgentId waiter) {
    if (Reached(point)) return;
    WaitGraph::Stalls stalls;
    std::unique_lock<std::mutex> lock(mutex_);
    if (Reached(point)) return;
    waiters_.push_back({point, waiter});
    if (wait_graph_ != nullptr && waiter != kNoAgent) {
      // This wait needs no callback of its own: a stall always begins with a
      // collective, whose failure lets the queue continue.
      stalls = wait_graph_->BeginWait(
          waiter, {agent_}, absl::StrCat("work on stream ", stream_), nullptr);
      lock.unlock();
      stalls.Run();
      lock.lock();
    }
    reached_.wait(lock, [&] { return Reached(point); });
  }

  void Advance() {
    bool wake = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const int64_t done = done_.load(std::memory_order_relaxed) + 1;
      done_.store(done, std::memory_order_release);
      for (size_t i = 0; i < waiters_.size();) {
        if (waiters_[i].point > done) {
          ++i;
          continue;
        }
        // End the wait here, before the waiter's thread wakes up. Otherwise it
        // would seem to wait for an idle queue.
        if (wait_graph_ != nullptr && waiters_[i].agent != kNoAgent) {
          wait_graph_->EndWait(waiters_[i].agent);
        }
        waiters_[i] = waiters_.back();
        waiters_.pop_back();
        wake = true;
      }
    }
    if (wake) reached_.notify_all();
  }

 private:
  struct Waiter {
    int64_t point;
    AgentId agent;
  };

  const std::string stream_;
  WaitGraph* const wait_graph_;
  const AgentId host_agent_;
  const AgentId agent_;
  std::mutex mutex_;
  std::condition_variable reached_;
  std::atomic<int64_t> done_{0};  // Written with mutex_ held.
  std::vector<Waiter> waiters_;
};

/// The point of a queue after its first `point` tasks.
class QueuePoint final : public Event::State {
 public:
  QueuePoint(std::shared_ptr<Progress> progress, int64_t point)
      : progress_(std::move(progress)), point_(point) {}

  bool reached() override { return progress_->Reached(point_); }
  void Block() override {
    progress_->BlockUntil(point_, progress_->host_agent());
  }
  void BlockWorker(AgentId worker) override {
    progress_->BlockUntil(point_, worker);
  }

 private:
  const std::shared_ptr<Progress> progress_;
  const int64_t point_;
};

class QueueStream final : public Stream {
 public:
  QueueStream(std::string name, RankParts options)
      : Stream(std::move(name), nullptr),
        options_(std::move(options)),
        progress_(std::make_shared<Progress>(this->name(), options_)) {
    absl::StatusOr<std::thread> worker =
        StartThread(absl::StrCat("the worker of stream ", this->name(),
                                 " of rank ", options_.rank),
                    [this] {
                      if (options_.run_worker) {
                        options_.run_worker([this] { Work(); });
                      } else {
                        Work();
                      }
                    });
    if (worker.ok()) {
      worker_ = *std::move(worker);
    } else if (options_.on_no_worker) {
      options_.on_no_worker(worker.status());
    }
  }

  ~QueueStream() override {
    Synchronize();
    {
      std::lock_guard<std::mutex> lock(progress_->mutex());
      stopping_ = true;
    }
    work_.notify_one();
    if (worker_.joinable()) worker_.join();
  }

  Event Record() override {
    if (last_point_ != issued_) {
      last_point_ = issued_;
      last_event_ = Event(std::make_shared<QueuePoint>(progress_, issued_));
    }
    return last_event_;
  }

  void Wait(const Event& event) override {
    Event::State* const state = event.state();
    if (state == nullptr || state->reached()) return;
    Enqueue([event, agent = agent()](KernelContext&) {
      event.state()->BlockWorker(agent);
    });
  }

  void Synchronize() override {
    progress_->BlockUntil(issued_, progress_->host_agent());
  }

  AgentId agent() const override { return progress_->agent(); }

 private:
  struct Issued {
    Task task;
    IssuedErrorContext at;
  };

  void Enqueue(Task task) override {
    ++issued_;
    if (!worker_.joinable()) {
      KernelContext context{.pool = options_.pool};
      task(context);
      progress_->Advance();
      return;
    }
    // Adversarial runs are for tests, so they capture the full error context.
    Issued issued = {std::move(task), IssuedErrorContext::Capture(
                                          options_.adversarial_seed != 0)};
    {
      std::lock_guard<std::mutex> lock(progress_->mutex());
      pending_.push_back(std::move(issued));
      if (!idle_) return;
      // Set by the issuing thread. Otherwise the wait graph would assume until
      // the worker wakes up that the queue waits for more work.
      idle_ = false;
      if (progress_->wait_graph() != nullptr) {
        progress_->wait_graph()->SetRunning(agent());
      }
    }
    work_.notify_one();
  }

  void Work() {
    KernelContext context{.pool = options_.pool};
    std::optional<AdversarialDelays> delays;
    if (options_.adversarial_seed != 0) {
      delays.emplace(options_.adversarial_seed, options_.rank, name());
    }
    std::vector<Issued> batch;
    while (TakeBatch(batch)) {
      for (Issued& issued : batch) {
        if (delays.has_value()) delays->BeforeTask();
        {
          const IssuedErrorContextScope issuer(issued.at);
          issued.task(context);
        }
        issued.task = nullptr;  // Destroy what it captured before notifying.
        progress_->Advance();
      }
      batch.clear();
    }
  }

  /// Swaps the pending tasks with the empty `batch`, waiting while there are
  /// none. Returns false if the stream ends.
  bool TakeBatch(std::vector<Issued>& batch) {
    WaitGraph* const graph = progress_->wait_graph();
    WaitGraph::Stalls stalls;  // Run with the lock released.
    std::unique_lock<std::mutex> lock(progress_->mutex());
    if (pending_.empty() && !stopping_) {
      idle_ = true;
      if (graph != nullptr) {
        stalls = graph->SetIdle(agent());
        lock.unlock();
        stalls.Run();
        lock.lock();
      }
      work_.wait(lock, [this] { return !pending_.empty() || stopping_; });
    }
    if (pending_.empty()) {
      if (graph != nullptr) stalls = graph->SetFinished(agent());
      return false;
    }
    batch.swap(pending_);
    return true;
  }

  const RankParts options_;
  const std::shared_ptr<Progress> progress_;

  // For the rank's thread only.
  int64_t issued_ = 0;
  int64_t last_point_ = 0;
  Event last_event_;  // Null for a queue without work.

  // Guarded by progress_->mutex().
  std::condition_variable work_;
  std::vector<Issued> pending_;
  bool idle_ = false;
  bool stopping_ = false;

  std::thread worker_;  // Last: it uses all of the above.
};

}  // namespace

std::unique_ptr<Stream> MakeInlineStream(std::string name,
                                         KernelContext* context) {
  return std::make_unique<InlineStream>(std::move(name), context);
}

std::unique_ptr<Stream> MakeQueueStream(std::string name, RankParts rank) {
  return std::make_unique<QueueStream>(std::move(name), std::move(rank));
}

std::unique_ptr<Stream> MakeCpuStream(const std::string& name, StreamRole role,
                                      const RankParts& rank) {
  if (role == StreamRole::kCompute && rank.adversarial_seed == 0) {
    return MakeInlineStream(name, rank.inline_context);
  }
  return MakeQueueStream(name, rank);
}

}  // namespace crosshatch
