// SPDX-License-Identifier: Apache-2.0
//
// The engine of processes by MPI. Only this file calls MPI.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/mpi/notification.h"
#include "crosshatch/comm/mpi/run_process.h"
#include "crosshatch/comm/ucx/run_ucx.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace internal {
namespace {

absl::Status MpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return absl::InternalError(
      absl::StrCat(call, " failed with code ", code, ": ",
                   absl::string_view(text, static_cast<size_t>(length))));
}

/// The longest sleep, which is also what a lost notification costs.
constexpr std::chrono::milliseconds kLongestSleep(1);
/// The first sleep if a peer is on another machine and cannot notify.
constexpr std::chrono::microseconds kFirstSleepAfar(50);

/// Processes that share memory with this one.
struct Neighbours {
  int core_share = 1;
  /// By rank; null for those on other machines.
  std::vector<Notification*> notifications;
};

class MpiLink final : public Link {
 public:
  MpiLink(MPI_Comm comm, int rank, int size, int max_tag,
          const Neighbours& neighbours)
      : comm_(comm),
        rank_(rank),
        size_(size),
        max_tag_(max_tag),
        neighbours_(neighbours),
        all_near_(std::count(neighbours.notifications.begin(),
                             neighbours.notifications.begin() + size,
                             nullptr) == 0) {}

  void Close() { MPI_Comm_free(&comm_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int core_share() const override { return neighbours_.core_share; }
  int max_tag() const override { return max_tag_; }

  absl::Status TakeControl(int& from, std::string& taken) override {
    from = -1;
    if (!incoming_.pending) {
      int found = 0;
      MPI_Message message;
      MPI_Status status;
      CH_RETURN_IF_ERROR(
          MpiStatus(MPI_Improbe(MPI_ANY_SOURCE, kControlTag, comm_, &found,
                                &message, &status),
                    "MPI_Improbe"));
      if (found == 0) return absl::OkStatus();
      int bytes = 0;
      CH_RETURN_IF_ERROR(
          MpiStatus(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
      incoming_from_ = status.MPI_SOURCE;
      incoming_message_.resize(static_cast<size_t>(bytes));
      MPI_Request request;
      CH_RETURN_IF_ERROR(MpiStatus(MPI_Imrecv(incoming_message_.data(), bytes,
                                              MPI_BYTE, &message, &request),
                                   "MPI_Imrecv"));
      Keep(request, incoming_);
    }
    CH_RETURN_IF_ERROR(Test(incoming_));
    if (incoming_.pending) return absl::OkStatus();
    from = incoming_from_;
    std::swap(taken, incoming_message_);
    return absl::OkStatus();
  }

  absl::Status Send(int to, int tag, const void* data, int64_t bytes,
                    LinkRequest& request) override {
    if (bytes > INT_MAX) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a message of ", bytes, " bytes to rank ", to,
          " is larger than MPI takes; the side channel is for small ones"));
    }
    MPI_Request started;
    CH_RETURN_IF_ERROR(MpiStatus(MPI_Isend(data, static_cast<int>(bytes),
                                           MPI_BYTE, to, tag, comm_, &started),
                                 "MPI_Isend"));
    Keep(started, request);
    return absl::OkStatus();
  }

  absl::Status Receive(int from, int tag, void* data, int64_t bytes,
                       LinkRequest& request) override {
    MPI_Request started;
    CH_RETURN_IF_ERROR(
        MpiStatus(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag,
                            comm_, &started),
                  "MPI_Irecv"));
    Keep(started, request);
    return absl::OkStatus();
  }

  absl::Status Test(LinkRequest& request) override {
    if (!request.pending) return absl::OkStatus();
    MPI_Request under_way = Held(request);
    int done = 0;
    CH_RETURN_IF_ERROR(
        MpiStatus(MPI_Test(&under_way, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    request.pending = done == 0;
    return absl::OkStatus();
  }

  absl::Status CancelReceive(LinkRequest& request) override {
    MPI_Request under_way = Held(request);
    return MpiStatus(MPI_Cancel(&under_way), "MPI_Cancel");
  }

  void Forget(LinkRequest& request) override {
    MPI_Request under_way = Held(request);
    MPI_Request_free(&under_way);
    request.pending = false;
  }

  std::chrono::nanoseconds first_sleep() const override {
    return all_near_ ? kLongestSleep : kFirstSleepAfar;
  }
  std::chrono::nanoseconds longest_sleep() const override {
    return kLongestSleep;
  }
  void Notify(int rank) override {
    if (neighbours_.notifications[rank] != nullptr)
      neighbours_.notifications[rank]->Notify();
  }
  uint32_t Arm() override { return neighbours_.notifications[rank_]->Arm(); }
  void Disarm() override { neighbours_.notifications[rank_]->Disarm(); }
  void Sleep(uint32_t seen, std::chrono::nanoseconds longest) override {
    neighbours_.notifications[rank_]->Sleep(seen, longest);
  }

 private:
  static_assert(sizeof(MPI_Request) <= sizeof(LinkRequest::handle));

  static void Keep(MPI_Request request, LinkRequest& kept) {
    std::memcpy(&kept.handle, &request, sizeof(request));
    kept.pending = true;
  }
  static MPI_Request Held(const LinkRequest& kept) {
    MPI_Request request;
    std::memcpy(&request, &kept.handle, sizeof(request));
    return request;
  }

  MPI_Comm comm_;
  const int rank_;
  const int size_;
  const int max_tag_;
  const Neighbours& neighbours_;
  const bool all_near_;

  LinkRequest incoming_;
  int incoming_from_ = -1;
  std::string incoming_message_;
};

/// The most that MPI's end may take: the timeout of the last job, if that is
/// shorter, but no less than what a loaded machine takes.
constexpr absl::Duration kFinalising = absl::Seconds(30);
constexpr absl::Duration kLeastFinalising = absl::Seconds(5);
/// The bytes that each process sends at a time in an exchange.
constexpr uint64_t kExchangedPiece = uint64_t{1} << 20;

/// MPI in this process, from the first use to the process's exit. There it is
/// finalised if all processes have ended the last job together, because
/// finalising waits for all of them.
/// \threadsafety one thread at a time, and none while a job runs.
class MpiProcess {
 public:
  /// Initialises MPI if necessary.
  /// \error why it cannot be used: initialisation failed, it was finalised, or
  ///     a process of an earlier job is lost.
  static absl::StatusOr<MpiProcess*> Get();

  /// Ends MPI in this process (EndMpi).
  static void End();

  /// Creates a link together with all processes. Messages of earlier jobs do
  /// not reach it.
  /// \param ranks of the link, from 0 on; 0: all processes. Other processes
  ///     cannot use the link.
  /// \param failure called repeatedly; not OK if a process will not come
  /// \error kDeadlineExceeded if not all have come within `timeout`; `failure`.
  absl::StatusOr<std::unique_ptr<Link>> Open(
      int ranks, absl::Duration timeout,
      absl::FunctionRef<absl::Status()> failure);
  /// Frees a link of Open.
  /// \pre No process has messages in flight on it.
  void Close(std::unique_ptr<Link> link);
  /// Records that all processes have ended the job of the last Open together,
  /// or that it is a job without this process.
  /// \param end_timeout bounds MPI's finalisation, for which the others are
  ///     ready; at least five seconds are used, and at most thirty
  void EndJob(absl::Duration end_timeout, bool took_part = true);
  /// Records that a process is lost: nothing works any more, and finalising
  /// would hang.
  void Break(const absl::Status& why);

  /// Returns the result of ExchangeByMpi.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& blob);

 private:
  MpiProcess() = default;
  ~MpiProcess();
  static MpiProcess& Instance();
  bool CanBeFinalised() const;
  void Finalise();
  absl::Status Start();
  absl::Status FindNeighbours();

  int rank_ = 0;
  int size_ = 1;
  int max_tag_ = 0;
  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  Neighbours neighbours_;
  bool initialised_here_ = false;
  bool started_ = false;
  /// Whether no process has left on its own since the last job, for example by
  /// calling exit.
  bool is_in_step_ = false;
  bool had_job_ = false;
  /// Whether the others end about when this process does.
  bool took_part_ = true;
  absl::Duration end_timeout_;
  absl::Status broken_;
};

MpiProcess::~MpiProcess() {
  if (!CanBeFinalised()) return;
  // No coordinator watches any more: a process that is lost now is not
  // reported.
  if (took_part_) {
    // Also after a failed job, even if its failure was expected.
    const std::string text =
        absl::StrCat("[rank ", rank_, "] MPI did not end within ",
                     absl::FormatDuration(end_timeout_),
                     ": another process of the job is lost or late");
    auto watch = StartThread("the watch over MPI's end",
                             [end_timeout = end_timeout_, text] {
                               absl::SleepFor(end_timeout);
                               EndProcess(text);
                             });
    if (watch.ok()) watch->detach();
  }
  Finalise();
}

bool MpiProcess::CanBeFinalised() const {
  int finalised = 0;
  return is_in_step_ && broken_.ok() &&
         MPI_Finalized(&finalised) == MPI_SUCCESS && finalised == 0;
}

void MpiProcess::Finalise() {
  // Errors are ignored, since nothing handles them at exit.
  MPI_Win_free(&window_);
  MPI_Comm_free(&node_);
  if (initialised_here_) MPI_Finalize();
}

MpiProcess& MpiProcess::Instance() {
  static MpiProcess process;
  return process;
}

void MpiProcess::End() {
  MpiProcess& process = Instance();
  // Processes that have exchanged blobs and run no job have ended together,
  // too.
  if (!process.had_job_) process.is_in_step_ = process.started_;
  if (!process.CanBeFinalised()) return;
  process.Finalise();
  // Breaks this process's use of MPI even if the program keeps MPI running.
  process.Break(absl::FailedPreconditionError("EndMpi has been called in it"));
}

absl::StatusOr<MpiProcess*> MpiProcess::Get() {
  MpiProcess& process = Instance();
  if (!process.broken_.ok()) return process.broken_;
  int finalised = 0;
  CH_RETURN_IF_ERROR(MpiStatus(MPI_Finalized(&finalised), "MPI_Finalized"));
  if (finalised != 0) {
    return absl::FailedPreconditionError(
        "MPI has been finalised in this process; a job must come before that");
  }
  if (!process.started_) {
    const absl::Status started = process.Start();
    if (!started.ok()) {
      process.Break(started);
      return started;
    }
    process.started_ = true;
  }
  return &process;
}

/// If mpirun has all processes on one host, they share memory. By default Open
/// MPI, and libfabric, would still listen on all interfaces, and one byte from
/// a stranger stops Open MPI for good.
void ListenNowhereOnOneHost() {
  const char* const here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const char* const all = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (here == nullptr || all == nullptr || std::strcmp(here, all) != 0) return;
  setenv("OMPI_MCA_btl", "^tcp,ofi", /*overwrite=*/0);
}

absl::Status MpiProcess::Start() {
  // A lost peer is an error of MPI's, and does not end this process.
  struct sigaction on_broken_pipe = {};
  sigaction(SIGPIPE, nullptr, &on_broken_pipe);
  if (on_broken_pipe.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
  int initialised = 0;
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Initialized(&initialised), "MPI_Initialized"));
  int level = MPI_THREAD_SINGLE;
  if (initialised == 0) {
    // By default PMIx shares memory with mpirun, including a lock. A process
    // killed while holding the lock blocks mpirun forever. "hash" uses messages
    // instead.
    setenv("PMIX_MCA_gds", "hash", /*overwrite=*/0);
    ListenNowhereOnOneHost();
    CH_RETURN_IF_ERROR(MpiStatus(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level),
        "MPI_Init_thread"));
    initialised_here_ = true;
  } else {
    CH_RETURN_IF_ERROR(MpiStatus(MPI_Query_thread(&level), "MPI_Query_thread"));
  }
  if (level < MPI_THREAD_SERIALIZED) {
    return absl::FailedPreconditionError(
        absl::StrCat("MPI gives thread level ", level,
                     "; MPI_THREAD_SERIALIZED or more is needed"));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank"));
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size"));
  int* max_tag = nullptr;
  int found = 0;
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &max_tag, &found),
                "MPI_Comm_get_attr"));
  max_tag_ = found != 0 ? *max_tag : 32767;  // The least that MPI allows.
  return FindNeighbours();
}

absl::Status MpiProcess::FindNeighbours() {
  struct Neighbour {
    int rank;
    CoreSet cores;
  };
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0,
                                    MPI_INFO_NULL, &node_),
                "MPI_Comm_split_type"));
  int num_near = 0;
  int index = 0;
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_size(node_, &num_near), "MPI_Comm_size"));
  CH_RETURN_IF_ERROR(MpiStatus(MPI_Comm_rank(node_, &index), "MPI_Comm_rank"));
  const Neighbour self = {rank_, AllowedCores()};
  std::vector<Neighbour> near(static_cast<size_t>(num_near));
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Allgather(&self, sizeof self, MPI_BYTE, near.data(),
                              sizeof self, MPI_BYTE, node_),
                "MPI_Allgather"));
  void* mine = nullptr;
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Win_allocate_shared(sizeof(Notification), 1, MPI_INFO_NULL,
                                        node_, &mine, &window_),
                "MPI_Win_allocate_shared"));
  new (mine) Notification;
  CH_RETURN_IF_ERROR(MpiStatus(MPI_Barrier(node_), "MPI_Barrier"));
  neighbours_.notifications.assign(static_cast<size_t>(size_), nullptr);
  std::vector<CoreSet> cores;
  for (int i = 0; i < num_near; ++i) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* theirs = nullptr;
    CH_RETURN_IF_ERROR(
        MpiStatus(MPI_Win_shared_query(window_, i, &bytes, &unit, &theirs),
                  "MPI_Win_shared_query"));
    const Neighbour& neighbour = near[static_cast<size_t>(i)];
    neighbours_.notifications[neighbour.rank] =
        static_cast<Notification*>(theirs);
    cores.push_back(neighbour.cores);
  }
  neighbours_.core_share = CoreShare(cores, static_cast<size_t>(index));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Link>> MpiProcess::Open(
    int ranks, absl::Duration timeout,
    absl::FunctionRef<absl::Status()> failure) {
  if (ranks < 0 || ranks > size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job of ", ranks, " ranks, and there are ", size_, " processes"));
  }
  had_job_ = true;
  is_in_step_ = false;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  CH_RETURN_IF_ERROR(MpiStatus(MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request),
                               "MPI_Comm_idup"));
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration pause = absl::Microseconds(20);
  while (true) {
    int done = 0;
    CH_RETURN_IF_ERROR(
        MpiStatus(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    if (done != 0) break;
    if (const absl::Status failed = failure(); !failed.ok()) {
      Break(failed);
      return failed;
    }
    if (absl::Now() > deadline) {
      const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank_, " waited for ", absl::FormatDuration(timeout),
          " for all ", size_, " processes to come to the same job"));
      Break(late);
      return late;
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(1));
  }
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return std::make_unique<MpiLink>(comm, rank_, ranks > 0 ? ranks : size_,
                                   max_tag_, neighbours_);
}

void MpiProcess::EndJob(absl::Duration end_timeout, bool took_part) {
  took_part_ = took_part;
  end_timeout_ = std::clamp(end_timeout, kLeastFinalising, kFinalising);
  is_in_step_ = true;
}

void MpiProcess::Close(std::unique_ptr<Link> link) {
  static_cast<MpiLink&>(*link).Close();
}

void MpiProcess::Break(const absl::Status& why) {
  if (!broken_.ok()) return;
  broken_ = absl::FailedPreconditionError(absl::StrCat(
      "nothing more can run in this process, because: ", why.message()));
}

absl::StatusOr<std::vector<std::string>> MpiProcess::Exchange(
    const std::string& blob) {
  const auto n = static_cast<size_t>(size_);
  const auto mine = static_cast<uint64_t>(blob.size());
  std::vector<uint64_t> sizes(n);
  CH_RETURN_IF_ERROR(
      MpiStatus(MPI_Allgather(&mine, 1, MPI_UINT64_T, sizes.data(), 1,
                              MPI_UINT64_T, MPI_COMM_WORLD),
                "MPI_Allgather"));
  // MPI counts the bytes of all processes in an int.
  const uint64_t piece = std::min<uint64_t>(kExchangedPiece, INT_MAX / n);
  const uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> blobs(n);
  std::vector<int> counts(n), begins(n);
  std::string pieces;
  for (uint64_t at = 0; at < longest; at += piece) {
    int total = 0;
    for (size_t r = 0; r < n; ++r) {
      counts[r] =
          at < sizes[r] ? static_cast<int>(std::min(piece, sizes[r] - at)) : 0;
      begins[r] = total;
      total += counts[r];
    }
    pieces.resize(static_cast<size_t>(total));
    CH_RETURN_IF_ERROR(
        MpiStatus(MPI_Allgatherv(blob.data() + std::min(at, mine),
                                 counts[static_cast<size_t>(rank_)], MPI_BYTE,
                                 pieces.data(), counts.data(), begins.data(),
                                 MPI_BYTE, MPI_COMM_WORLD),
                  "MPI_Allgatherv"));
    for (size_t r = 0; r < n; ++r) {
      blobs[r].append(pieces, static_cast<size_t>(begins[r]),
                      static_cast<size_t>(counts[r]));
    }
  }
  return blobs;
}

}  // namespace
}  // namespace internal

absl::Status RunMpi(absl::FunctionRef<absl::Status(World&)> fn,
                    const MpiOptions& options) {
  if (options.ucx != nullptr) return internal::RunUcx(fn, options);
  CH_RETURN_IF_ERROR(internal::CheckOptions(options));
  CH_ASSIGN_OR_RETURN(internal::MpiProcess * process,
                      internal::MpiProcess::Get());
  // Waits for the processes of the job unless one is lost.
  CH_ASSIGN_OR_RETURN(std::unique_ptr<internal::Link> link,
                      process->Open(options.ranks, options.job.timeout,
                                    [&] { return internal::LossOf(options); }));
  if (link->rank() >= link->size()) {
    process->EndJob(options.job.timeout, /*took_part=*/false);
    process->Close(std::move(link));
    return absl::OkStatus();
  }
  const internal::ProcessResult result =
      internal::RunProcess(*link, fn, options);
  if (!result.ended_together) {
    process->Break(result.status);
    return result.status;
  }
  process->EndJob(options.job.timeout);
  // A failed job may have left messages that are never received.
  if (result.status.ok()) process->Close(std::move(link));
  return result.status;
}

void EndMpi() { internal::MpiProcess::End(); }

absl::StatusOr<std::vector<std::string>> ExchangeByMpi(
    const std::string& blob) {
  CH_ASSIGN_OR_RETURN(internal::MpiProcess * process,
                      internal::MpiProcess::Get());
  return process->Exchange(blob);
}

}  // namespace crosshatch
