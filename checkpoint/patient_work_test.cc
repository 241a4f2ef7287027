// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/patient_work.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

TEST(PatientWorkTest, DoesAllInOrder) {
  std::vector<size_t> done;
  PatientWork work(3, [&](size_t part) {
    done.push_back(part);
    return absl::OkStatus();
  });
  EXPECT_TRUE(work.RunUntil(0).ok());
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(work.RunPatiently().ok());
  EXPECT_EQ(done, (std::vector<size_t>{0, 1, 2}));
  EXPECT_TRUE(work.RunUntil(7).ok());
  EXPECT_EQ(done.size(), 3u);
  PatientWork nothing(0, [](size_t) { return absl::InternalError("none"); });
  EXPECT_TRUE(nothing.RunPatiently().ok());
  EXPECT_TRUE(nothing.RunUntil(1).ok());
}

TEST(PatientWorkTest, ItsFirstErrorEndsIt) {
  size_t calls = 0;
  PatientWork work(3, [&](size_t part) {
    ++calls;
    return part == 1 ? absl::DataLossError("one") : absl::OkStatus();
  });
  EXPECT_TRUE(work.RunUntil(1).ok());
  EXPECT_EQ(work.RunPatiently(), absl::DataLossError("one"));
  EXPECT_EQ(work.RunUntil(3), absl::DataLossError("one"));
  EXPECT_EQ(calls, 2u);
}

/// Memory may run out in one, and its thread may be a rank's, which outlives
/// it.
TEST(PatientWorkTest, WhatAPartThrowsEndsItForAll) {
  std::atomic<bool> is_in_part = false;
  PatientWork work(2, [&](size_t) -> absl::Status {
    is_in_part = true;
    throw std::bad_alloc();
  });
  std::thread other([&] { EXPECT_THROW(work.RunUntil(1), std::bad_alloc); });
  while (!is_in_part) std::this_thread::yield();
  EXPECT_TRUE(absl::IsInternal(work.RunPatiently()));
  other.join();
  EXPECT_TRUE(absl::IsInternal(work.RunUntil(2)));
}

/// By which threads six parts are done of which a thread has begun with part 1
/// when another asks for four: the numbers of those that the other one does.
std::vector<size_t> TakenOver(std::chrono::milliseconds patience) {
  std::vector<std::thread::id> by(6);
  std::atomic<bool> is_in_part = false;
  std::atomic<bool> may_go_on = false;
  PatientWork work(6, [&](size_t part) {
    by[part] = std::this_thread::get_id();
    if (part == 1) {
      is_in_part = true;
      while (!may_go_on) std::this_thread::yield();
    }
    EXPECT_TRUE(part < 2 || may_go_on) << "two parts at once";
    return absl::OkStatus();
  });
  std::thread patient([&] { EXPECT_TRUE(work.RunPatiently().ok()); });
  while (!is_in_part) std::this_thread::yield();
  // What is done already is not waited for.
  EXPECT_TRUE(work.RunUntil(1).ok());
  std::thread other([&] { EXPECT_TRUE(work.RunUntil(4).ok()); });
  const std::thread::id others = other.get_id();
  std::this_thread::sleep_for(patience);
  may_go_on = true;
  other.join();
  patient.join();
  std::vector<size_t> taken_over;
  for (size_t part = 0; part < by.size(); ++part) {
    EXPECT_NE(by[part], std::thread::id()) << part;
    if (by[part] == others) taken_over.push_back(part);
  }
  return taken_over;
}

TEST(PatientWorkTest, WhoCannotWaitDoesTheRestHimself) {
  // When the other one has asked cannot be seen, so it is given longer and
  // longer for that.
  std::vector<size_t> taken_over;
  for (int ms = 1; taken_over.size() < 2 && ms < 20000; ms *= 2) {
    taken_over = TakenOver(std::chrono::milliseconds(ms));
  }
  EXPECT_EQ(taken_over, (std::vector<size_t>{2, 3}));
}

}  // namespace
}  // namespace crosshatch::checkpoint
