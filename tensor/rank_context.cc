// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/rank_context.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/adversarial_delays.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "crosshatch/tensor/context_decorator.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/step_capture.h"

namespace crosshatch {
namespace {

// The thread that runs main and its tests.
const std::thread::id kFirstThread = std::this_thread::get_id();

// Any program can run on adversarial streams. Its results must not change.
RankContextOptions Completed(RankContextOptions options) {
  if (options.backend == nullptr) options.backend = &CpuBackend();
  // A loader thread's work is finished when it passes a tensor on.
  const bool is_loader =
      options.without_rank && std::this_thread::get_id() != kFirstThread;
  if (options.adversarial_seed == 0 && !is_loader) {
    const absl::StatusOr<uint64_t> seed = AdversarialSeedOfEnvironment();
    CH_CHECK_OK(seed.status());
    options.adversarial_seed = *seed;
  }
  return options;
}

uint64_t NextId() {
  static std::atomic<uint64_t> contexts{0};
  return ++contexts;
}

// Bounds the memory held for work that may not be finished.
constexpr size_t kMostHeld = 64;

template <typename Part>
std::unique_ptr<Part> Decorated(ContextDecorator* decorator,
                                std::unique_ptr<Part> part) {
  if (decorator == nullptr) return part;
  return decorator->Decorate(std::move(part));
}

}  // namespace

RankContext::RankContext(const RankContextOptions& options)
    : options_(Completed(options)),
      device_(options.dry_run ? Device::Meta() : options_.backend->device()),
      pool_(options.threads),
      host_agent_(options.wait_graph == nullptr
                      ? kNoAgent
                      : options.wait_graph->AddAgent(options.world_rank, "host",
                                                     kNoAgent)),
      kernels_(&options_.backend->kernels()),
      kernel_context_{.pool = &pool_},
      id_(NextId()) {
  if (!pool_.status().ok()) Poison(pool_.status());
  allocator_ =
      Decorated(options_.decorator,
                options_.dry_run
                    ? MakeAccountingAllocator()
                    : backend().MakeAllocator(options_.adversarial_seed != 0));
  allocator_->set_owner(Owner());
  allocator_->set_sink(options.sink);
  current_allocator_ = allocator_.get();
  compute_stream_ = MakeStream("compute", /*is_compute=*/true);
  current_stream_ = compute_stream_.get();
}

RankContext::~RankContext() {
  // All of them before any is destroyed, because their work depends on each
  // other.
  Synchronize().IgnoreError();
  side_streams_.clear();
  compute_stream_.reset();
  extensions_.clear();
  for (const auto& memory : graph_memory_) memory->TakeReturned();
  for (auto* allocator : {&allocator_, &host_allocator_}) {
    if (*allocator == nullptr) continue;
    if (options_.without_rank) {
      Allocator::Retire(std::move(*allocator));
    } else {
      (*allocator)->TakeReturned();
    }
  }
  if (options_.wait_graph != nullptr) {
    options_.wait_graph->SetFinished(host_agent_);
  }
}

void RankContext::BreakCapture(const std::string& why) {
  if (capture_ != nullptr) capture_->Break(why);
}

Allocator& RankContext::host_allocator() {
  if (capture_ != nullptr) BreakCapture("the host reads or writes elements");
  if (host_allocator_ == nullptr) {
    host_allocator_ = Decorated(
        options_.decorator,
        options_.dry_run
            ? MakeAccountingAllocator()
            : backend().MakeHostAllocator(options_.adversarial_seed != 0));
    host_allocator_->set_owner(Owner());
    host_allocator_->set_sink(options_.sink, /*of_host=*/true);
  }
  return *host_allocator_;
}

AllocatorOwner RankContext::Owner() const {
  return {id_, options_.without_rank
                   ? ""
                   : absl::StrCat("rank ", options_.world_rank)};
}

RankContext& RankContext::OwnOfThread() {
  thread_local RankContext own_context{{.without_rank = true}};
  return own_context;
}

void RankContext::Hold(const std::shared_ptr<Storage>& storage) {
  if (compute_stream_->runs_inline() && side_streams_.empty()) return;
  if (std::find(held_.begin(), held_.end(), storage) != held_.end()) return;
  if (held_.size() == kMostHeld) Synchronize().IgnoreError();
  held_.push_back(storage);
}

void RankContext::set_sink(EventSink* sink) {
  options_.sink = sink;
  allocator_->set_sink(sink);
  if (host_allocator_ != nullptr) {
    host_allocator_->set_sink(sink, /*of_host=*/true);
  }
}

std::unique_ptr<Stream> RankContext::MakeStream(const std::string& name,
                                                bool is_compute) {
  // A dry run issues no work.
  if (options_.dry_run) {
    return Decorated(options_.decorator,
                     MakeInlineStream(name, &kernel_context_));
  }
  return Decorated(
      options_.decorator,
      backend().MakeStream(
          name, is_compute ? StreamRole::kCompute : StreamRole::kSide,
          {.rank = options_.world_rank,
           .pool = &pool_,
           .inline_context = &kernel_context_,
           .wait_graph = options_.wait_graph,
           .host_agent = host_agent_,
           .adversarial_seed = options_.adversarial_seed,
           .run_worker =
               [this](absl::FunctionRef<void()> loop) {
                 const RankContextScope scope(this);
                 loop();
               },
           .on_no_worker =
               [this](const absl::Status& error) { Poison(error); }}));
}

Stream& RankContext::SideStream(const std::string& name) {
  for (const auto& stream : side_streams_) {
    if (stream->name() == name) return *stream;
  }
  BreakCapture("the step creates a stream");
  CH_CHECK(name != compute_stream_->name())
      << "'" << name << "' is the compute stream, not a side stream";
  side_streams_.push_back(MakeStream(name, /*is_compute=*/false));
  return *side_streams_.back();
}

AgentId RankContext::AgentOf(const Stream& stream) const {
  // If a device's own queue runs a task, the rank's thread issued it.
  const AgentId worker = stream.agent();
  return worker == kNoAgent ? host_agent_ : worker;
}

absl::Status RankContext::Synchronize() {
  compute_stream_->Synchronize();
  for (const auto& stream : side_streams_) stream->Synchronize();
  held_.clear();
  return status();
}

void RankContext::Poison(absl::Status error) {
  CH_CHECK(!error.ok()) << "poisoning a rank with no error";
  std::lock_guard<std::mutex> lock(poison_mutex_);
  if (!first_error_.ok()) return;
  first_error_ = std::move(error);
  is_poisoned_.store(true, std::memory_order_release);
}

absl::Status RankContext::status() const {
  if (!poisoned()) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(poison_mutex_);
  return first_error_;
}

RankContextScope::RankContextScope(RankContext* context)
    : ErrorContext(Kind::kRank),
      context_(context),
      previous_(std::exchange(RankContext::current_, context)) {}

RankContextScope::~RankContextScope() { RankContext::current_ = previous_; }

std::string RankContextScope::Describe() const {
  if (context_ == nullptr || context_->without_rank()) return "";
  return absl::StrCat("rank ", context_->world_rank());
}

StreamScope::StreamScope(Stream& stream)
    : ContextStateScope(RankContext::Current().current_stream_, &stream) {}

GradModeScope::GradModeScope(bool enabled)
    : ContextStateScope(RankContext::Current().grad_enabled_, enabled) {}

MemoryClassScope::MemoryClassScope(MemoryClass memory_class)
    : ContextStateScope(RankContext::Current().memory_class_, memory_class) {}

HostMemoryScope::HostMemoryScope()
    : ContextStateScope(RankContext::Current().current_allocator_,
                        &RankContext::Current().host_allocator()) {}

SavedTensorScope::SavedTensorScope(SavedTensorStore* store)
    : ContextStateScope(RankContext::Current().saved_tensor_store_, store) {}

}  // namespace crosshatch
