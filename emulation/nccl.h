// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_NCCL_H_
#define CROSSHATCH_EMULATION_NCCL_H_

/// \file
/// The functions of NCCL that Crosshatch uses, on the emulated runtime: names,
/// parameters and semantics are NCCL's. Ranks are threads of one process. A
/// call runs in stream order and waits for its peers. If the peers disagree, or
/// one does not come, it waits until the communicator is aborted, as on
/// devices.
///
/// Sums of each part of the data have their own order and are rounded at each
/// step, as those of a ring are.

#include <cstddef>
#include <cstdint>

#include "crosshatch/emulation/cuda_runtime.h"

namespace crosshatch {

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
const char* ncclGetErrorString(ncclResult_t result);

inline constexpr int NCCL_UNIQUE_ID_BYTES = 128;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

struct ncclComm;
using ncclComm_t = ncclComm*;

enum ncclDataType_t : int {
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};
enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
};

/// If `blocking` is 0, calls return at once, with ncclInProgress if they are
/// not complete. The communicator may be used again when ncclCommGetAsyncError
/// no longer returns that.
struct ncclConfig_t {
  int blocking = 1;
};
#define NCCL_CONFIG_INITIALIZER \
  {}

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
/// Creates a rank of the communicator `id` on the current device. No other rank
/// of it may be on the device, unless the version is 2.30 or later and
/// NCCL_MULTI_RANK_GPU_ENABLE is 1.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t* config);
inline constexpr int NCCL_SPLIT_NOCOLOR = -1;
/// Splits `comm`; all of its ranks call it. Those of one color get a
/// communicator, in the order of their keys, or none with NCCL_SPLIT_NOCOLOR.
/// If `comm` is nonblocking, `child` is written when ncclCommGetAsyncError
/// reports that `comm` is ready.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t* child, ncclConfig_t* config);
/// Registers memory of one allocation, so that sends and receives need no copy.
/// It must be deregistered before it is freed.
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t bytes,
                              void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
/// Ends the use of `comm`, which is ready and has not failed.
/// ncclCommGetAsyncError reports when all issued work has ended.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
/// Destroys a communicator that is finalized, ready and has not failed. NCCL
/// finalizes others itself and may wait for any time; here that is an invalid
/// usage.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
/// Ends all issued work.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);

/// Calls of a group are issued at its end and progress together.
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* recv, size_t send_count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t recv_count,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);

namespace emulation {

/// Sets the version that ncclGetVersion returns. It is 22809 initially, for
/// 2.28.9.
void SetNcclVersion(int version);

/// Stops rank `rank` of communicators created from now on after its first
/// `after` calls, as if its device had stopped. If `after` is negative, they do
/// not even get ready. -1 stops no rank.
void StopNcclRank(int rank, int64_t after = 0);

/// Makes ncclCommGetAsyncError return `error` on all ranks of existing
/// communicators.
void FailNccl(ncclResult_t error);

/// Makes ncclCommRegister fail on rank `rank` of each communicator; -1 for
/// none.
void RefuseNcclRegistrations(int rank);

/// Puts devices d on host d / `devices` in communicators created from now on.
/// 0, as initially: all devices are on one host.
void SetNcclHosts(int devices);

/// Counts of calls by all ranks.
struct NcclCounts {
  /// Calls that issued work.
  int64_t sends = 0;
  int64_t collectives = 0;
  /// Handles created by an id and by splits.
  int64_t of_ids = 0;
  int64_t of_splits = 0;
  int64_t registrations = 0;
  /// Sends, receives and collectives of memory that is not registered.
  int64_t unregistered = 0;
  /// Handles destroyed by ncclCommDestroy.
  int64_t destroyed = 0;
  /// Handles neither destroyed nor aborted.
  int64_t open = 0;
  /// Groups of calls, or single calls outside of a group, of a stream.
  int64_t launches = 0;
  /// What completed sends and collectives moved between hosts. A collective is
  /// a ring in which the ranks of a host are neighbours: as many messages leave
  /// hosts as there are hosts, or one less in a broadcast. Each carries all
  /// parts but one of an all-gather or a reduce-scatter, both in an all-reduce,
  /// and all data of a broadcast.
  int64_t bytes_between_hosts = 0;
  int64_t messages_between_hosts = 0;
};
NcclCounts CountsOfNccl();

}  // namespace emulation
}  // namespace crosshatch

#endif  // CROSSHATCH_EMULATION_NCCL_H_
