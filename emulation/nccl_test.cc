// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/nccl.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

// One rank: a thread, a stream of a device, and pinned memory, which the test
// and the devices can read.
struct Rank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* data = nullptr;
};
constexpr size_t kFloats = 64;

void Await(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    std::this_thread::yield();
  }
  EXPECT_EQ(state, ncclSuccess);
}

// Runs `body` on each rank after all communicators are ready, since `body` may
// make them fail.
void OnRanks(int ranks, const std::function<void(Rank&)>& body) {
  [[maybe_unused]] static const bool has_devices = [] {
    emulation::SetDevices(3, int64_t{1} << 30);
    return true;
  }();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::latch all_ready(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{.rank = r};
      EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
      EXPECT_EQ(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking),
                cudaSuccess);
      void* data = nullptr;
      EXPECT_EQ(
          cudaHostAlloc(&data, kFloats * sizeof(float), cudaHostAllocPortable),
          cudaSuccess);
      rank.data = static_cast<float*>(data);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      EXPECT_EQ(ncclCommInitRankConfig(&rank.comm, ranks, id, r, &config),
                ncclInProgress);
      Await(rank.comm);
      all_ready.arrive_and_wait();
      body(rank);
      EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
      if (rank.comm != nullptr) {
        EXPECT_EQ(ncclCommFinalize(rank.comm), ncclInProgress);
        Await(rank.comm);
        EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
      }
      EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
      EXPECT_EQ(cudaFreeHost(data), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Three devices on two hosts: ranks 0 and 1, and rank 2.
TEST(NcclTest, CountsWhatMovesBetweenHosts) {
  constexpr int64_t kFloat = sizeof(float);
  emulation::SetNcclHosts(2);
  std::latch counted(3);
  std::latch sent(3);
  OnRanks(3, [&](Rank& me) {
    const emulation::NcclCounts before = emulation::CountsOfNccl();
    counted.arrive_and_wait();
    // 5 floats to the next rank: two of three messages leave a host.
    ncclGroupStart();
    ncclSend(me.data, 5, ncclFloat32, (me.rank + 1) % 3, me.comm, me.stream);
    ncclRecv(me.data + 8, 5, ncclFloat32, (me.rank + 2) % 3, me.comm,
             me.stream);
    ncclGroupEnd();
    EXPECT_EQ(cudaStreamSynchronize(me.stream), cudaSuccess);
    sent.arrive_and_wait();
    const emulation::NcclCounts after = emulation::CountsOfNccl();
    EXPECT_EQ(after.launches - before.launches, 3);
    EXPECT_EQ(after.messages_between_hosts - before.messages_between_hosts, 2);
    EXPECT_EQ(after.bytes_between_hosts - before.bytes_between_hosts,
              2 * 5 * kFloat);
  });
  const auto bytes_of = [&](const std::function<void(Rank&)>& collective) {
    const int64_t before = emulation::CountsOfNccl().bytes_between_hosts;
    OnRanks(3, collective);
    return (emulation::CountsOfNccl().bytes_between_hosts - before) / kFloat;
  };
  EXPECT_EQ(bytes_of([](Rank& me) {
              ncclAllGather(me.data, me.data + 8, 4, ncclFloat32, me.comm,
                            me.stream);
            }),
            2 * 2 * 4);
  EXPECT_EQ(bytes_of([](Rank& me) {
              ncclReduceScatter(me.data, me.data + 32, 4, ncclFloat32, ncclSum,
                                me.comm, me.stream);
            }),
            2 * 2 * 4);
  EXPECT_EQ(bytes_of([](Rank& me) {
              ncclAllReduce(me.data, me.data, 6, ncclFloat32, ncclSum, me.comm,
                            me.stream);
            }),
            2 * 2 * 2 * 2);
  EXPECT_EQ(bytes_of([](Rank& me) {
              ncclBroadcast(me.data, me.data, 7, ncclFloat32, 1, me.comm,
                            me.stream);
            }),
            7);
  emulation::SetNcclHosts(0);
  EXPECT_EQ(bytes_of([](Rank& me) {
              ncclAllGather(me.data, me.data + 8, 4, ncclFloat32, me.comm,
                            me.stream);
            }),
            0);
}

TEST(NcclTest, MovesAndReduces) {
  OnRanks(3, [](Rank& rank) {
    float* const data = rank.data;
    data[rank.rank] = static_cast<float>(rank.rank + 1);
    EXPECT_EQ(ncclAllGather(&data[rank.rank], data, 1, ncclFloat32, rank.comm,
                            rank.stream),
              ncclSuccess);
    EXPECT_EQ(ncclAllReduce(data, data + 8, 3, ncclFloat32, ncclSum, rank.comm,
                            rank.stream),
              ncclSuccess);
    EXPECT_EQ(ncclReduceScatter(data, data + 16, 1, ncclFloat32, ncclProd,
                                rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(ncclBroadcast(data + 2, data + 24, 1, ncclFloat32, 1, rank.comm,
                            rank.stream),
              ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_THAT(std::vector<float>(data, data + 3), ElementsAre(1, 2, 3));
    EXPECT_THAT(std::vector<float>(data + 8, data + 11), ElementsAre(3, 6, 9));
    const auto mine = static_cast<float>(rank.rank + 1);
    EXPECT_EQ(data[16], mine * mine * mine);
    EXPECT_EQ(data[24], 3);
  });
}

// One after another, each call would wait for the next one.
TEST(NcclTest, AGroupGoesOnTogether) {
  OnRanks(3, [](Rank& rank) {
    rank.data[0] = static_cast<float>(rank.rank);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < 3; ++r) {
      ncclSend(rank.data, 1, ncclFloat32, r, rank.comm, rank.stream);
      ncclRecv(rank.data + 4 + r, 1, ncclFloat32, r, rank.comm, rank.stream);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_THAT(std::vector<float>(rank.data + 4, rank.data + 7),
                ElementsAre(0, 1, 2));
  });
}

// Checks that issued work does not end until an abort.
void ExpectHangsUntilAborted(const std::function<void(Rank&)>& issue) {
  OnRanks(2, [&](Rank& rank) {
    issue(rank);
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
              cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, rank.stream), cudaSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    ncclResult_t state = ncclInProgress;
    EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclSuccess) << "nothing is known of it";
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  });
}

TEST(NcclTest, HangsWhereRanksDisagree) {
  ExpectHangsUntilAborted([](Rank& rank) {
    const size_t count = rank.rank == 0 ? 4 : 5;
    ncclAllReduce(rank.data, rank.data, count, ncclFloat32, ncclSum, rank.comm,
                  rank.stream);
  });
  ExpectHangsUntilAborted([](Rank& rank) {
    if (rank.rank == 0) {
      ncclAllGather(rank.data, rank.data, 1, ncclFloat32, rank.comm,
                    rank.stream);
    } else {
      ncclBroadcast(rank.data, rank.data, 1, ncclFloat32, 0, rank.comm,
                    rank.stream);
    }
  });
  ExpectHangsUntilAborted([](Rank& rank) {
    const int peer = 1 - rank.rank;
    ncclSend(rank.data, 1, ncclFloat32, peer, rank.comm, rank.stream);
    ncclRecv(rank.data, 2, ncclFloat32, peer, rank.comm, rank.stream);
  });
}

TEST(NcclTest, HangsWhereARankStops) {
  emulation::StopNcclRank(1, /*after=*/1);
  OnRanks(2, [](Rank& rank) {
    ncclAllReduce(rank.data, rank.data, 1, ncclFloat32, ncclSum, rank.comm,
                  rank.stream);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    ncclAllReduce(rank.data, rank.data, 1, ncclFloat32, ncclSum, rank.comm,
                  rank.stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
  emulation::StopNcclRank(-1);
}

TEST(NcclTest, AddsInOrdersOfItsOwn) {
  // In rank order the first two would be added first.
  OnRanks(3, [](Rank& rank) {
    const float mine[] = {1e8f, -1e8f, 1.0f};
    std::fill_n(rank.data, kFloats, mine[rank.rank]);
    ncclAllReduce(rank.data, rank.data, 3, ncclFloat32, ncclSum, rank.comm,
                  rank.stream);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_THAT(std::vector<float>(rank.data, rank.data + 3),
                ElementsAre(0, 0, 1));
  });
}

TEST(NcclTest, SaysWhatFailsLater) {
  OnRanks(2, [](Rank& rank) {
    ncclResult_t state = ncclSuccess;
    if (rank.rank == 0) emulation::FailNccl(ncclRemoteError);
    while (state == ncclSuccess) {
      EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
      std::this_thread::yield();
    }
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_EQ(ncclCommFinalize(rank.comm), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST(NcclTest, IsFinalizedWhenAllThatWasIssuedHasEnded) {
  const int64_t open = emulation::CountsOfNccl().open;
  std::latch one_has_looked(1);
  OnRanks(2, [&](Rank& rank) {
    const auto sum = [&] {
      return ncclAllReduce(rank.data, rank.data, 1, ncclFloat32, ncclSum,
                           rank.comm, rank.stream);
    };
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclInvalidUsage);
    if (rank.rank == 1) one_has_looked.wait();
    EXPECT_EQ(sum(), ncclSuccess);
    EXPECT_EQ(ncclCommFinalize(rank.comm), ncclInProgress);
    if (rank.rank == 0) {
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
      EXPECT_EQ(state, ncclInProgress);
      EXPECT_EQ(ncclCommDestroy(rank.comm), ncclInvalidArgument);
      one_has_looked.count_down();
    }
    Await(rank.comm);
    EXPECT_EQ(sum(), ncclInvalidUsage);
    EXPECT_EQ(ncclCommFinalize(rank.comm), ncclInvalidArgument) << "again";
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
  EXPECT_EQ(emulation::CountsOfNccl().open, open);
}

TEST(NcclTest, HasOneRankOnADevice) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t first = nullptr;
  ncclComm_t second = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&first, 2, id, 0, &config), ncclInProgress);
  EXPECT_EQ(ncclCommInitRankConfig(&second, 2, id, 1, &config),
            ncclInvalidUsage);
  EXPECT_EQ(ncclCommDestroy(first), ncclInvalidArgument) << "not ready";
  EXPECT_EQ(ncclCommAbort(first), ncclSuccess);
}

}  // namespace
}  // namespace crosshatch
