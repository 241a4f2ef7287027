// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_NCCL_H_
#define CROSSHATCH_EMULATION_NCCL_H_

/// \file
/// The functions of NCCL that Crosshatch uses, upon the emulated runtime:
/// names, parameters and semantics are NCCL's. Ranks are threads of one
/// process. What is issued runs when the stream comes to it, and waits there
/// for the peers: where they disagree, or one does not come, it waits until the
/// communicator is aborted, as on devices.
///
/// Sums are taken in an order of their own for each part of the data, and are
/// rounded at each step, as those of a ring are.

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

/// Calls of a communicator with `blocking` 0 return at once, with
/// ncclInProgress where they are not done; it is used again when
/// ncclCommGetAsyncError says so.
struct ncclConfig_t {
  int blocking = 1;
};
#define NCCL_CONFIG_INITIALIZER \
  {}

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
/// A rank of the communicator `id` on the current device, which none of its
/// other ranks is on, unless the version is 2.30 or later and
/// NCCL_MULTI_RANK_GPU_ENABLE is 1.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t* config);
inline constexpr int NCCL_SPLIT_NOCOLOR = -1;
/// Of all ranks of `comm`: those of one color get a communicator of their own,
/// in the order of their keys; with NCCL_SPLIT_NOCOLOR none. Of one whose calls
/// return at once: `child` is written when ncclCommGetAsyncError says that
/// `comm` is ready again.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t* child, ncclConfig_t* config);
/// What is sent from and received in these bytes, of one allocation, needs no
/// copy; to be taken back before they are freed.
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t bytes,
                              void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
/// Nothing more is issued to `comm`, which is ready and has not failed;
/// ncclCommGetAsyncError says when all that was issued has ended.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
/// Of a communicator that is finalized, ready and has not failed. NCCL
/// finalizes others itself, and waits there for as long as that takes; here
/// that is an invalid usage.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
/// Ends what was issued.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);

/// What a group holds is issued at its end, and goes on together.
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

/// What ncclGetVersion says from now on: at first 22809, for 2.28.9.
void SetNcclVersion(int version);

/// Of communicators made from now on: rank `rank` never takes part in what is
/// issued after its first `after` calls, as one whose device has stopped; with
/// `after` below 0 they do not even get ready. -1: all ranks take part.
void StopNcclRank(int rank, int64_t after = 0);

/// ncclCommGetAsyncError says so from now on, on all ranks of communicators
/// that are there.
void FailNccl(ncclResult_t error);

/// ncclCommRegister fails from now on, on rank `rank` of each communicator; -1:
/// on none.
void RefuseNcclRegistrations(int rank);

/// Calls of all ranks.
struct NcclCounts {
  /// That issued something.
  int64_t sends = 0;
  int64_t collectives = 0;
  /// Ends of communicators that were made of an id, and by splits.
  int64_t of_ids = 0;
  int64_t of_splits = 0;
  int64_t registrations = 0;
  /// Sends, receives and collectives of memory that is not registered.
  int64_t unregistered = 0;
  /// By ncclCommDestroy.
  int64_t destroyed = 0;
  /// Neither destroyed nor aborted so far.
  int64_t open = 0;
};
NcclCounts CountsOfNccl();

}  // namespace emulation
}  // namespace crosshatch

#endif  // CROSSHATCH_EMULATION_NCCL_H_
