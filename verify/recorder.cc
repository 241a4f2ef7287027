// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/run_rank.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/verify/recording_kernels.h"

namespace crosshatch::verify {
namespace {

using Kind = LoggedEvent::Kind;

// Nothing is mapped there, so an access by mistake ends the process.
constexpr int64_t kFirstAddress = int64_t{1} << 44;
constexpr int64_t kAlignment = 64;

}  // namespace

// A point of a recorded stream. It is reached when the job runs, so never here.
class Recorder::Point final : public Event::State {
 public:
  Point(Recorder& recorder, int stream, int64_t id)
      : recorder_(recorder), stream_(stream), id_(id) {}
  bool reached() override { return false; }
  void Block() override { recorder_.Add(Kind::kHostWait, stream_, id_); }
  void BlockWorker(AgentId) override {}
  int64_t id() const { return id_; }

 private:
  Recorder& recorder_;
  const int stream_;
  const int64_t id_;
};

class Recorder::RecordedStream final : public Stream {
 public:
  RecordedStream(Recorder& recorder, const std::string& name, int index)
      : Stream(name, nullptr), recorder_(recorder) {
    context_.recorder = &recorder;
    context_.stream = index;
  }

  int index() const { return context_.stream; }

  Event Record() override {
    const int64_t id = recorder_.log_.points++;
    recorder_.Add(Kind::kRecord, index(), id);
    return Event(std::make_shared<Point>(recorder_, index(), id));
  }
  void Wait(const Event& event) override {
    if (event.state() == nullptr) return;
    recorder_.Add(Kind::kWait, index(),
                  static_cast<const Point*>(event.state())->id());
  }
  void Synchronize() override { Record().state()->Block(); }

 private:
  void Enqueue(Task task) override { task(context_); }
  /// Host functions write values, of which a dry run has none.
  void EnqueueHost(Task) override {}

  Recorder& recorder_;
  RecordingContext context_;
};

class Recorder::RecordedAllocator final : public Allocator {
 public:
  explicit RecordedAllocator(Recorder& recorder) : recorder_(recorder) {}

  Device device() const override { return Device::Meta(); }
  int64_t reserved_bytes() const override { return 0; }

 private:
  void Lease(Block& block, Stream& stream) override {
    RankLog& log = recorder_.log_;
    const auto id = static_cast<int64_t>(log.leases.size());
    const int64_t begin = recorder_.next_address_;
    const int home = static_cast<RecordedStream&>(stream).index();
    log.leases.push_back({.begin = begin,
                          .bytes = block.bytes(),
                          .memory_class = block.memory_class(),
                          .stream = home,
                          .text = recorder_.TextOfWork("allocation")});
    // A gap, so that an address past the end is in no lease.
    recorder_.next_address_ +=
        (block.bytes() + 2 * kAlignment - 1) / kAlignment * kAlignment;
    recorder_.Add(Kind::kLease, home, id);
    ++recorder_.live_leases_;
    SetMemory(block, reinterpret_cast<std::byte*>(begin), block.bytes());
  }

  void Return(Block& block) override {
    RankLog& log = recorder_.log_;
    const int64_t id = log.LeaseAt(reinterpret_cast<int64_t>(block.data()));
    if (id < 0) return;  // A leaked block: the log has been taken.
    LoggedLease& lease = log.leases[static_cast<size_t>(id)];
    lease.memory_class = block.memory_class();
    lease.released = true;
    for (const MemoryUse& use : uses(block)) {
      recorder_
          .Add(Kind::kUse, static_cast<RecordedStream&>(*use.stream).index(),
               id)
          .point = static_cast<const Point*>(use.event.state())->id();
    }
    recorder_.Add(Kind::kRelease, lease.stream, id);
    --recorder_.live_leases_;
  }

  Recorder& recorder_;
};

Recorder::Recorder(int rank, int world_size) : next_address_(kFirstAddress) {
  log_.rank = rank;
  log_.world_size = world_size;
}

std::unique_ptr<Stream> Recorder::Decorate(std::unique_ptr<Stream> stream) {
  log_.streams.push_back(stream->name());
  return std::make_unique<RecordedStream>(
      *this, stream->name(), static_cast<int>(log_.streams.size()) - 1);
}

std::unique_ptr<Allocator> Recorder::Decorate(std::unique_ptr<Allocator>) {
  return std::make_unique<RecordedAllocator>(*this);
}

LoggedEvent& Recorder::Add(Kind kind, int stream, int64_t id) {
  LoggedEvent& event = log_.events.emplace_back();
  event.kind = kind;
  event.stream = stream;
  event.id = id;
  event.first_access = static_cast<uint32_t>(log_.accesses.size());
  return event;
}

int Recorder::Text(const std::string& text) {
  const auto [found, is_new] =
      texts_.emplace(text, static_cast<int>(log_.texts.size()));
  if (is_new) log_.texts.push_back(text);
  return found->second;
}

int Recorder::TextOfWork(const char* name) {
  const std::shared_ptr<const std::string> module = RunningModule();
  const ErrorContext* const gradient =
      ErrorContext::Innermost(ErrorContext::Kind::kGradient);
  const char* const of = gradient == nullptr ? nullptr : gradient->op_name();
  const auto [found, is_new] =
      works_.emplace(std::tuple(name, module.get(), of), 0);
  if (is_new) {
    if (module != nullptr) modules_.push_back(module);
    found->second = Text(absl::StrCat(
        name, of == nullptr ? "" : absl::StrCat(", gradient of ", of),
        module == nullptr ? "" : absl::StrCat(", in ", *module)));
  }
  return found->second;
}

LoggedEvent& Recorder::Kernel(int stream, const char* name,
                              const std::vector<LoggedAccess>& accesses) {
  LoggedEvent& event = Add(Kind::kWork, stream, -1);
  event.text = TextOfWork(name);
  event.num_accesses = static_cast<uint32_t>(accesses.size());
  log_.accesses.insert(log_.accesses.end(), accesses.begin(), accesses.end());
  return event;
}

void Recorder::UnknownKernel(int stream) {
  Kernel(stream, "a kernel of the program", {});
  ++log_.unknown_kernels;
}

int Recorder::Group(const GroupKey& key, int member) {
  const auto [found, is_new] =
      groups_.emplace(key, static_cast<int>(log_.groups.size()));
  if (is_new) {
    log_.groups.push_back({.name = key.name,
                           .world_ranks = key.world_ranks,
                           .member = member,
                           .stream = key.stream_name});
  }
  return found->second;
}

void Recorder::Issue(int group, const Collective& collective,
                     const Stream& stream) {
  const LoggedGroup& g = log_.groups[static_cast<size_t>(group)];
  LoggedCollective logged = {
      .group = group,
      .kind = collective.kind,
      .dtype = collective.dtype,
      .op = collective.reduce_op,
      .scale = collective.scale,
      .root = collective.root,
      .label = collective.label,
      .bytes = BytesReceived(collective, g.member,
                             static_cast<int>(g.world_ranks.size()))};
  LoggedEvent& event =
      Add(Kind::kCollective, static_cast<const RecordedStream&>(stream).index(),
          static_cast<int64_t>(log_.collectives.size()));
  const int64_t element = SizeOf(collective.dtype);
  const auto add = [&](const std::vector<SegmentList>& lists, bool writes,
                       std::vector<int64_t>& counts) {
    for (size_t i = 0; i < lists.size(); ++i) {
      counts.push_back(NumElements(lists[i]));
      for (const Segment& segment : lists[i]) {
        if (segment.data == nullptr || segment.elems() == 0) continue;
        const int64_t begin = reinterpret_cast<int64_t>(segment.data);
        const int64_t extent =
            (segment.runs - 1) * segment.stride_elems + segment.run_elems;
        log_.accesses.push_back({.begin = begin,
                                 .end = begin + extent * element,
                                 .writes = writes});
        logged.list_of_access.push_back(static_cast<int>(i));
      }
    }
  };
  add(collective.send, /*writes=*/false, logged.sent);
  add(collective.recv, /*writes=*/true, logged.received);
  event.num_accesses =
      static_cast<uint32_t>(log_.accesses.size()) - event.first_access;
  log_.collectives.push_back(std::move(logged));
}

void Recorder::Exchange(int group, const std::string& what) {
  Add(Kind::kExchange, -1, group).text = Text(what);
}

namespace {

class RecordedControl final : public ControlPlane {
 public:
  RecordedControl(Recorder& recorder, RankContext& context)
      : recorder_(recorder), context_(context) {}

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(const GroupKey& key,
                                                     int member,
                                                     absl::Duration) override {
    return std::make_unique<Member>(recorder_, context_,
                                    recorder_.Group(key, member), key.size());
  }
  absl::Duration timeout() const override { return absl::InfiniteDuration(); }
  void FailRank(const absl::Status& error) override { context_.Poison(error); }

 private:
  // One rank's handle of a group whose other members do not exist.
  class Member final : public ControlGroup {
   public:
    Member(Recorder& recorder, RankContext& context, int group, int size)
        : recorder_(recorder), context_(context), group_(group), size_(size) {}

    void Bind(Stream&) override {}
    absl::Status Agree(const Fingerprint&,
                       absl::FunctionRef<void(PayloadRoom)>) override {
      return absl::OkStatus();
    }
    absl::string_view Of(int) const override { return ""; }
    void Done() override {}
    absl::StatusOr<std::vector<std::string>> Gather(
        GatherOrder, std::string blob, const std::string& what) override {
      recorder_.Exchange(group_, what);
      return std::vector<std::string>(static_cast<size_t>(size_), blob);
    }
    absl::Status Fail(const absl::Status& failure) override {
      context_.Poison(failure);
      return failure;
    }

   private:
    Recorder& recorder_;
    RankContext& context_;
    const int group_;
    const int size_;
  };

  Recorder& recorder_;
  RankContext& context_;
};

class RecordedPlanes final : public DataPlanes {
 public:
  explicit RecordedPlanes(Recorder& recorder) : recorder_(recorder) {}

  const std::string& name() const override { return name_; }
  bool connects_alone() const override { return true; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(const GroupKey& key,
                                                     int member, RankContext&,
                                                     absl::Duration,
                                                     Exchange) override {
    return std::make_unique<Plane>(recorder_, recorder_.Group(key, member));
  }

 private:
  class Plane final : public DataPlane {
   public:
    Plane(Recorder& recorder, int group) : recorder_(recorder), group_(group) {}
    absl::Status Issue(const Collective& collective, int64_t, const Payloads&,
                       Stream& queue) override {
      recorder_.Issue(group_, collective, queue);
      return absl::OkStatus();
    }
    void Abort() override {}

   private:
    Recorder& recorder_;
    const int group_;
  };

  const std::string name_ = "fake";
  Recorder& recorder_;
};

}  // namespace

absl::StatusOr<RankLog> RecordRank(
    absl::FunctionRef<absl::Status(World&)> program, int rank, int world_size,
    const DeviceBackend* backend) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", rank, " in a world of ", world_size));
  }
  // Blocks that the program leaks refer to them, and keep them then.
  struct Rank {
    Rank(int rank, int world_size, const DeviceBackend& real)
        : backend(real),
          recorder(rank, world_size),
          context({.world_rank = rank,
                   .world_size = world_size,
                   .backend = &backend,
                   .dry_run = true,
                   .decorator = &recorder}) {}
    const RecordingBackend backend;
    Recorder recorder;
    RankContext context;
  };
  auto run = std::make_unique<Rank>(
      rank, world_size, backend == nullptr ? CpuBackend() : *backend);
  absl::Status status;
  {
    const RankContextScope scope(&run->context);
    RecordedControl control(run->recorder, run->context);
    RecordedPlanes planes(run->recorder);
    World world(control, planes, run->context);
    status = RunRank(world, program);
  }
  const bool leaks = run->recorder.has_leases();
  RankLog log = run->recorder.TakeLog();
  if (leaks) {
    static std::vector<std::unique_ptr<Rank>>& kept =
        *new std::vector<std::unique_ptr<Rank>>;
    kept.push_back(std::move(run));
  }
  CH_RETURN_IF_ERROR(status);
  return log;
}

}  // namespace crosshatch::verify
