// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/nccl.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/nccl_communion.h"

namespace crosshatch {
namespace emulation {
namespace {

/// The state of the library, shared by the process.
struct Library {
  std::mutex mutex;
  int64_t ids = 0;
  std::map<std::string, std::shared_ptr<Communion>> communions;
  std::set<ncclComm_t> comms;
  std::atomic<int> version{22809};
  int stopped_rank = -1;
  int64_t stopped_after = 0;
  std::atomic<int64_t> sends{0};
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> of_ids{0};
  std::atomic<int64_t> of_splits{0};
  std::atomic<int64_t> registrations{0};
  std::atomic<int64_t> unregistered{0};
  std::atomic<int64_t> destroyed{0};
  std::atomic<int64_t> launches{0};
  std::atomic<int> refused_rank{-1};
  std::atomic<int> devices_per_host{0};
};
Library& TheLibrary() {
  static auto* const library = new Library;
  return *library;
}

bool TakesSeveralOnADevice(const Library& library) {
  const char* const enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return library.version >= 23000 && enabled != nullptr &&
         std::string(enabled) == "1";
}

}  // namespace
}  // namespace emulation

/// One rank's handle.
struct ncclComm {
  std::shared_ptr<emulation::Communion> communion;
  int rank = 0;
  int device = 0;
  int64_t stops_after = -1;
  int64_t issued = 0;
  /// Shared with work that its streams run after it is destroyed.
  std::shared_ptr<std::atomic<bool>> is_aborted =
      std::make_shared<std::atomic<bool>>(false);
  /// The number of calls that streams have yet to run.
  std::shared_ptr<std::atomic<int64_t>> pending =
      std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<int> async_error{ncclSuccess};
  bool is_finalized = false;
  /// The destination of the child of a split in progress. As with NCCL, the
  /// user must not call a communicator concurrently.
  ncclComm** child = nullptr;
  int64_t splits = 0;
  /// Sizes of registered memory, by address.
  std::map<std::uintptr_t, size_t> registered;
};

namespace emulation {
namespace {

/// A thread's calls since the outermost ncclGroupStart.
struct Group {
  int depth = 0;
  std::map<std::pair<ncclComm_t, cudaStream_t>, std::vector<Call>> calls;
};
thread_local constinit Group* open_group = nullptr;

/// Creates another handle of a communicator, which is not connected yet.
ncclComm_t Open(Library& library, std::shared_ptr<Communion> communion,
                int rank, int device) {
  auto* const comm = new ncclComm{
      .communion = std::move(communion), .rank = rank, .device = device};
  if (rank == library.stopped_rank) comm->stops_after = library.stopped_after;
  library.comms.insert(comm);
  if (rank != library.stopped_rank || library.stopped_after >= 0) {
    const int per_host = library.devices_per_host;
    comm->communion->Join(rank, per_host == 0 ? 0 : device / per_host);
  }
  return comm;
}

bool IsRegistered(const ncclComm& comm, const void* data, size_t bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  auto after = comm.registered.upper_bound(start);
  if (after == comm.registered.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return start + bytes <= begin + size;
}

ncclResult_t IssueCalls(ncclComm_t comm, cudaStream_t stream,
                        std::vector<Call> calls) {
  const bool is_stopped =
      comm->stops_after >= 0 && comm->issued >= comm->stops_after;
  comm->issued += static_cast<int64_t>(calls.size());
  // A captured call runs once for each launch of its graph.
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamGetCaptureInfo(stream, &status);
  const int64_t counted = status == cudaStreamCaptureStatusNone ? 1 : 0;
  comm->pending->fetch_add(counted);
  TheLibrary().launches.fetch_add(1);
  const cudaError_t issued = IssueLibraryWork(
      stream, [communion = comm->communion, rank = comm->rank, is_stopped,
               is_aborted = comm->is_aborted, pending = comm->pending, counted,
               calls = std::move(calls)] {
        if (is_stopped) {
          // A stopped rank sends nothing to the others.
          communion->AwaitAbort(*is_aborted);
        } else {
          communion->Run(rank, calls, *is_aborted);
        }
        pending->fetch_sub(counted);
      });
  return issued == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Ends the program if a call uses memory that the device cannot access.
void CheckReach(const ncclComm& comm, const Call& call) {
  const auto size = static_cast<size_t>(comm.communion->size());
  const size_t bytes = call.bytes();
  const size_t sent =
      call.kind == CallKind::kReduceScatter ? bytes * size : bytes;
  const size_t received =
      call.kind == CallKind::kAllGather ? bytes * size : bytes;
  const bool sends =
      call.kind != CallKind::kRecv &&
      (call.kind != CallKind::kBroadcast || call.peer == comm.rank);
  CH_CHECK(bytes == 0 || !sends || IsMemoryOfDevices(call.send, sent))
      << "NCCL is given memory of the host to send, which is not pinned";
  CH_CHECK(bytes == 0 || call.kind == CallKind::kSend ||
           IsMemoryOfDevices(call.recv, received))
      << "NCCL is given memory of the host to write, which is not pinned";
  const bool is_registered =
      (!sends || IsRegistered(comm, call.send, sent)) &&
      (call.kind == CallKind::kSend || IsRegistered(comm, call.recv, received));
  if (bytes > 0 && !is_registered) TheLibrary().unregistered.fetch_add(1);
}

ncclResult_t Issue(ncclComm_t comm, cudaStream_t stream, const Call& call) {
  if (comm == nullptr || stream == nullptr) return ncclInvalidArgument;
  if (comm->is_finalized) return ncclInvalidUsage;
  if (call.peer < 0 || call.peer >= comm->communion->size()) {
    return ncclInvalidArgument;
  }
  CheckReach(*comm, call);
  Library& library = TheLibrary();
  (call.kind == CallKind::kSend ? library.sends : library.collectives)
      .fetch_add(call.kind == CallKind::kRecv ? 0 : 1);
  if (open_group != nullptr) {
    open_group->calls[{comm, stream}].push_back(call);
    return ncclSuccess;
  }
  return IssueCalls(comm, stream, {call});
}

}  // namespace

void SetNcclVersion(int version) { TheLibrary().version = version; }

void StopNcclRank(int rank, int64_t after) {
  Library& library = TheLibrary();
  std::lock_guard<std::mutex> lock(library.mutex);
  library.stopped_rank = rank;
  library.stopped_after = after;
}

void FailNccl(ncclResult_t error) {
  Library& library = TheLibrary();
  std::lock_guard<std::mutex> lock(library.mutex);
  for (ncclComm_t comm : library.comms) comm->async_error = error;
}

void SetNcclHosts(int devices) { TheLibrary().devices_per_host = devices; }

void RefuseNcclRegistrations(int rank) { TheLibrary().refused_rank = rank; }

NcclCounts CountsOfNccl() {
  Library& library = TheLibrary();
  std::lock_guard<std::mutex> lock(library.mutex);
  const HostTraffic traffic = TrafficBetweenHosts();
  return {.sends = library.sends,
          .collectives = library.collectives,
          .of_ids = library.of_ids,
          .of_splits = library.of_splits,
          .registrations = library.registrations,
          .unregistered = library.unregistered,
          .destroyed = library.destroyed,
          .open = static_cast<int64_t>(library.comms.size()),
          .launches = library.launches,
          .bytes_between_hosts = traffic.bytes,
          .messages_between_hosts = traffic.messages};
}

}  // namespace emulation

using emulation::Call;
using emulation::CallKind;
using emulation::Issue;
using emulation::Library;
using emulation::TheLibrary;

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

ncclResult_t ncclGetVersion(int* version) {
  *version = TheLibrary().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Library& library = TheLibrary();
  std::lock_guard<std::mutex> lock(library.mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = "emulated " + std::to_string(++library.ids);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t* config) {
  if (rank < 0 || rank >= size) return ncclInvalidArgument;
  // A blocking call would need another thread to end its wait.
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  Library& library = TheLibrary();
  std::lock_guard<std::mutex> lock(library.mutex);
  auto& communion = library.communions[id.internal];
  if (communion == nullptr) {
    communion = std::make_shared<emulation::Communion>(size);
  }
  if (communion->size() != size) return ncclInvalidArgument;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  if (!communion->TakeDevice(device) && !TakesSeveralOnADevice(library)) {
    return ncclInvalidUsage;
  }
  library.of_ids.fetch_add(1);
  *comm = emulation::Open(library, communion, rank, device);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t* child, ncclConfig_t* config) {
  if (comm == nullptr || child == nullptr || comm->child != nullptr ||
      comm->is_finalized || color < NCCL_SPLIT_NOCOLOR) {
    return ncclInvalidArgument;
  }
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  *child = nullptr;
  comm->child = child;
  comm->communion->Split(comm->splits, comm->rank, color, key);
  return ncclInProgress;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t bytes,
                              void** handle) {
  // Host memory cannot be registered.
  if (comm == nullptr || comm->is_finalized || bytes == 0 ||
      !emulation::AllocationOf(data).Holds(
          reinterpret_cast<std::uintptr_t>(data), bytes)) {
    return ncclInvalidArgument;
  }
  if (comm->rank == TheLibrary().refused_rank) return ncclUnhandledCudaError;
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  if (!comm->registered.emplace(start, bytes).second) return ncclInvalidUsage;
  TheLibrary().registrations.fetch_add(1);
  *handle = data;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (comm == nullptr) return ncclInvalidArgument;
  const auto found =
      comm->registered.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == comm->registered.end()) return ncclInvalidArgument;
  CH_CHECK(emulation::IsMemoryOfDevices(handle, found->second))
      << "memory was freed that NCCL has registered";
  comm->registered.erase(found);
  return ncclSuccess;
}

namespace {

// A communicator that is not ready, or has failed, can only be aborted.
bool IsReady(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  return ncclCommGetAsyncError(comm, &state) == ncclSuccess &&
         state == ncclSuccess;
}

}  // namespace

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!IsReady(comm) || comm->is_finalized) return ncclInvalidArgument;
  comm->is_finalized = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!IsReady(comm)) return ncclInvalidArgument;
  if (!comm->is_finalized) return ncclInvalidUsage;
  TheLibrary().destroyed.fetch_add(1);
  return ncclCommAbort(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  *comm->is_aborted = true;
  comm->communion->Wake();
  for (const auto& [start, bytes] : comm->registered) {
    CH_CHECK(
        emulation::IsMemoryOfDevices(reinterpret_cast<void*>(start), bytes))
        << "memory was freed that NCCL has registered";
  }
  Library& library = TheLibrary();
  std::lock_guard<std::mutex> lock(library.mutex);
  library.comms.erase(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->child != nullptr) {
    const auto child = comm->communion->ChildOf(comm->splits, comm->rank);
    if (!child.has_value()) {
      *error = ncclInProgress;
      return ncclSuccess;
    }
    if (child->communion != nullptr) {
      Library& library = TheLibrary();
      std::lock_guard<std::mutex> lock(library.mutex);
      library.of_splits.fetch_add(1);
      *comm->child =
          emulation::Open(library, child->communion, child->rank, comm->device);
    }
    comm->child = nullptr;
    ++comm->splits;
  }
  const auto failed = static_cast<ncclResult_t>(comm->async_error.load());
  const bool in_progress = !comm->communion->AllJoined() ||
                           (comm->is_finalized && *comm->pending > 0);
  *error = failed == ncclSuccess && in_progress ? ncclInProgress : failed;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (emulation::open_group == nullptr) {
    emulation::open_group = new emulation::Group;
  }
  ++emulation::open_group->depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (emulation::open_group == nullptr) return ncclInvalidUsage;
  if (--emulation::open_group->depth > 0) return ncclSuccess;
  const std::unique_ptr<emulation::Group> group(
      std::exchange(emulation::open_group, nullptr));
  for (auto& [where, calls] : group->calls) {
    const ncclResult_t result =
        emulation::IssueCalls(where.first, where.second, std::move(calls));
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream) {
  return Issue(comm, stream,
               {.kind = CallKind::kSend,
                .send = data,
                .count = count,
                .type = type,
                .peer = peer});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return Issue(comm, stream,
               {.kind = CallKind::kRecv,
                .recv = data,
                .count = count,
                .type = type,
                .peer = peer});
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t send_count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Issue(comm, stream,
               {.kind = CallKind::kAllGather,
                .send = send,
                .recv = recv,
                .count = send_count,
                .type = type});
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t recv_count,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return Issue(comm, stream,
               {.kind = CallKind::kReduceScatter,
                .send = send,
                .recv = recv,
                .count = recv_count,
                .type = type,
                .op = op});
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return Issue(comm, stream,
               {.kind = CallKind::kAllReduce,
                .send = send,
                .recv = recv,
                .count = count,
                .type = type,
                .op = op});
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Issue(comm, stream,
               {.kind = CallKind::kBroadcast,
                .send = send,
                .recv = recv,
                .count = count,
                .type = type,
                .peer = root});
}

}  // namespace crosshatch
