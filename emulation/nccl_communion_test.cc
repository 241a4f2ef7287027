// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/nccl_communion.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::emulation {
namespace {

using ::testing::ElementsAre;

Call Send(const std::vector<int32_t>& data, int to) {
  return {.kind = CallKind::kSend,
          .send = data.data(),
          .count = data.size(),
          .type = ncclInt32,
          .peer = to};
}

Call Receive(std::vector<int32_t>& data, int from) {
  return {.kind = CallKind::kRecv,
          .recv = data.data(),
          .count = data.size(),
          .type = ncclInt32,
          .peer = from};
}

TEST(CommunionTest, SendsMeetReceivesInTheirOrder) {
  Communion communion(2);
  const std::atomic<bool> is_aborted = false;
  const std::vector<int32_t> first = {1, 2};
  const std::vector<int32_t> second = {3};
  std::vector<int32_t> got_first(2);
  std::vector<int32_t> got_second(1);
  std::thread sender([&] {
    communion.Run(0, {Send(first, 1), Send(second, 1)}, is_aborted);
  });
  communion.Run(1, {Receive(got_first, 0)}, is_aborted);
  communion.Run(1, {Receive(got_second, 0)}, is_aborted);
  sender.join();
  EXPECT_THAT(got_first, ElementsAre(1, 2));
  EXPECT_THAT(got_second, ElementsAre(3));
}

TEST(CommunionTest, WhatDoesNotFitWaitsUntilItIsAborted) {
  Communion communion(2);
  std::atomic<bool> is_aborted = false;
  const std::vector<int32_t> sent = {1, 2};
  std::vector<int32_t> received = {7};
  std::thread sender([&] { communion.Run(0, {Send(sent, 1)}, is_aborted); });
  std::thread receiver(
      [&] { communion.Run(1, {Receive(received, 0)}, is_aborted); });
  is_aborted = true;
  communion.Wake();
  sender.join();
  receiver.join();
  EXPECT_THAT(received, ElementsAre(7));
}

TEST(CommunionTest, SplitsByColorInTheOrderOfKeys) {
  Communion communion(4);
  communion.Split(0, 0, /*color=*/1, /*key=*/5);
  communion.Split(0, 1, 2, 0);
  communion.Split(0, 2, 1, 4);
  EXPECT_FALSE(communion.ChildOf(0, 0).has_value()) << "rank 3 has not come";
  communion.Split(0, 3, NCCL_SPLIT_NOCOLOR, 0);
  const Communion::Child first = communion.ChildOf(0, 2).value();
  const Communion::Child second = communion.ChildOf(0, 0).value();
  EXPECT_EQ(first.communion, second.communion);
  EXPECT_EQ(first.communion->size(), 2);
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(second.rank, 1);
  EXPECT_EQ(communion.ChildOf(0, 1)->communion->size(), 1);
  EXPECT_EQ(communion.ChildOf(0, 3)->communion, nullptr);
}

TEST(CommunionTest, HasOneRankOnADevice) {
  Communion communion(2);
  EXPECT_TRUE(communion.TakeDevice(0));
  EXPECT_FALSE(communion.TakeDevice(0));
  EXPECT_FALSE(communion.AllJoined());
  communion.Join(0);
  communion.Join(1);
  EXPECT_TRUE(communion.AllJoined());
}

}  // namespace
}  // namespace crosshatch::emulation
