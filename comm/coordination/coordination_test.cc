// SPDX-License-Identifier: Apache-2.0
//
// The service with its sockets and threads: several clients in one process.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/connection.h"
#include "crosshatch/comm/coordination/coordination_client.h"
#include "crosshatch/comm/coordination/coordination_server.h"
#include "crosshatch/comm/coordination/coordination_testutil.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/coordination/this_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

using ::testing::HasSubstr;

/// Connects to the port at `address` and returns 0 or the error number.
int Reach(const char* address, int port) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int failed =
      connect(socket_fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0
          ? 0
          : errno;
  close(socket_fd);
  return failed;
}

/// Waits until all ranks have joined. If one fails the job earlier, ranks that
/// have not joined receive the failure instead of a start.
void AwaitAll(CoordinationClient& client) {
  client.Gather("started", "", absl::Seconds(60)).status().IgnoreError();
}

TEST(CoordinationTest, ListensOnTheGivenAddressAlone) {
  const Job job(1);
  EXPECT_EQ(Reach("127.0.0.1", job.port()), 0);
  // Another address of this machine.
  EXPECT_EQ(Reach("127.0.0.2", job.port()), ECONNREFUSED);
}

TEST(CoordinationTest, RanksGatherAndLeave) {
  Job job(4);
  const auto results = job.RunAll([](CoordinationClient& client, int rank) {
    // Bytes that are not UTF-8.
    const auto all =
        client.Gather("all", std::string(rank, '\xff'), absl::Seconds(60));
    if (!all.ok()) return all.status();
    EXPECT_EQ(all->size(), 4u);
    for (size_t r = 0; r < all->size(); ++r) {
      EXPECT_EQ((*all)[r], std::string(r, '\xff'));
    }
    for (int i = 0; i < 3; ++i) {
      const auto met = client.Gather("b", "", absl::Seconds(60));
      if (!met.ok()) return met.status();
    }
    return client.Leave();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST(CoordinationTest, ARankThatDoesNotGatherFailsTheJob) {
  Job job(3);
  const auto results = job.RunAll([](CoordinationClient& client, int rank) {
    if (rank != 1) {
      const absl::Status met =
          client.Gather("lonely", "", absl::Milliseconds(50)).status();
      EXPECT_EQ(met.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(std::string(met.message()), HasSubstr("rank 1"));
    }
    return client.Leave();
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(
        result,
        absl::DeadlineExceededError(
            "rank 1 did not come to the exchange of 'lonely' within 50ms"));
  }
}

TEST(CoordinationTest, StrangersAreRefused) {
  Job job(2);
  for (const int rank : {0, 1}) {
    const auto stranger = job.Join(ThisProcess(rank, 2), "another token");
    EXPECT_EQ(stranger.status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(stranger.status().message()),
                HasSubstr("CROSSHATCH_JOB_TOKEN"));
  }
  const auto results = job.RunAll(
      [](CoordinationClient& client, int) { return client.Leave(); });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST(CoordinationTest, AWrongStartIsOneErrorOnAll) {
  Job job(3);
  std::vector<absl::Status> results(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    // Two of them are rank 1.
    threads.emplace_back([&, i] {
      results[i] = job.Join(ThisProcess(std::min(i, 1), 3)).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(std::string(results[0].message()),
              HasSubstr("two processes are rank 1"));
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(CoordinationTest, MissingRanksAreNamed) {
  // Long enough for ranks on a busy machine.
  Job job(3, {.start = absl::Seconds(3), .heartbeat = absl::Seconds(60)});
  const auto results = job.Run(
      {0, 2}, [](CoordinationClient&, int) { return absl::OkStatus(); });
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1 has not"));
  EXPECT_EQ(results[0], results[1]);
}

TEST(CoordinationTest, NoCoordinatorIsAnErrorInTime) {
  const auto client = CoordinationClient::Connect(
      kHost, 1, ThisProcess(1, 2), kToken,
      {.times = {.start = absl::Milliseconds(200)}});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("127.0.0.1:1"));
}

TEST(CoordinationTest, APortServesOneCoordinatorAtATime) {
  auto job = std::make_unique<Job>(1);
  const int port = job->port();
  const auto second = CoordinationServer::Start(kHost, port, ThisProcess(0, 1),
                                                kToken, Patient());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat(kHost, ":", port)));
  job.reset();
  const auto third = CoordinationServer::Start(kHost, port, ThisProcess(0, 1),
                                               kToken, Patient());
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST(CoordinationTest, TheFirstErrorReachesAllListeners) {
  Job job(3);
  std::mutex mutex;
  std::vector<std::string> reported;
  const auto results = job.RunAll([&](CoordinationClient& client, int rank) {
    std::promise<void> received;
    client.OnFailure([&](const FailureNotice& notice) {
      std::lock_guard lock(mutex);
      reported.push_back(notice.error.ToString());
      received.set_value();
    });
    AwaitAll(client);
    if (rank == 2) {
      client.Report({.world_ranks = {2}, .error = absl::InternalError("bad")});
    }
    received.get_future().wait();
    client.OnFailure(nullptr);
    return client.Leave();
  });
  EXPECT_THAT(reported, ::testing::ElementsAre("INTERNAL: bad", "INTERNAL: bad",
                                               "INTERNAL: bad"));
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.ToString(), "INTERNAL: rank 2: bad");
  }
}

TEST(CoordinationTest, ALateListenerReceivesTheFailure) {
  Job job(1);
  job.RunAll([](CoordinationClient& client, int) {
    client.Report({.world_ranks = {0}, .error = absl::InternalError("bad")});
    while (!client.failure().has_value()) absl::SleepFor(absl::Milliseconds(1));
    std::promise<void> received;
    client.OnFailure([&](const FailureNotice&) { received.set_value(); });
    received.get_future().wait();
    client.OnFailure(nullptr);
    return client.Leave();
  });
}

TEST(CoordinationTest, LossesAfterTheFailureAreReportedToo) {
  Job job(3);
  std::vector<FailureNotice> reported;
  std::promise<void> received_both;
  job.RunAll([&](CoordinationClient& client, int rank) {
    AwaitAll(client);
    if (rank == 2) {
      client.Report({.world_ranks = {2}, .error = absl::InternalError("bad")});
    }
    if (rank == 1) {
      while (!client.failure().has_value()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      return absl::OkStatus();  // Like a killed process.
    }
    if (rank == 0) {
      client.OnFailure([&](const FailureNotice& notice) {
        reported.push_back(notice);
        if (reported.size() == 2) received_both.set_value();
      });
      received_both.get_future().wait();
      client.OnFailure(nullptr);
    }
    return client.Leave();
  });
  EXPECT_EQ(reported[0].world_ranks, std::vector<int>{2});
  EXPECT_FALSE(reported[0].process_lost);
  EXPECT_EQ(reported[1].world_ranks, std::vector<int>{1});
  EXPECT_TRUE(reported[1].process_lost);
}

TEST(CoordinationTest, AFailureEndsWaits) {
  Job job(2);
  const auto results = job.RunAll([](CoordinationClient& client, int rank) {
    if (rank == 1) {
      client.Report({.world_ranks = {1}, .error = absl::InternalError("bad")});
    }
    const absl::Status status =
        client.Gather(absl::StrCat("own ", rank), "", absl::Hours(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    client.Leave().IgnoreError();
    return status;
  });
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1: bad"));
}

TEST(CoordinationTest, ALostRankIsNamedWithAllActivities) {
  Job job(3);
  const auto results = job.RunAll([](CoordinationClient& client, int rank) {
    client.SetActivity([rank] { return absl::StrCat("in step ", rank); });
    AwaitAll(client);
    if (rank == 1) return absl::OkStatus();  // Like a killed process.
    const absl::Status left = client.Leave();
    client.SetActivity(nullptr);
    return left;
  });
  const std::string text(results[0].message());
  EXPECT_EQ(results[0], results[2]);
  EXPECT_THAT(text, HasSubstr("rank 1: process "));
  EXPECT_THAT(text, HasSubstr("ended without a goodbye"));
  EXPECT_THAT(text, HasSubstr("in step 0"));
  EXPECT_THAT(text, HasSubstr("in step 2"));
}

TEST(CoordinationTest, TheLossOfTheCoordinatorIsNamed) {
  auto job = std::make_unique<Job>(2);
  std::promise<void> started;
  absl::Status left;
  std::thread rank_1([&] {
    auto client = job->Join(ThisProcess(1, 2));
    ASSERT_TRUE(client.ok()) << client.status();
    started.set_value();
    left = (*client)->Leave();
  });
  auto rank_0 = job->Join(ThisProcess(0, 2));
  ASSERT_TRUE(rank_0.ok()) << rank_0.status();
  started.get_future().wait();
  job.reset();
  rank_1.join();
  EXPECT_THAT(std::string(left.message()), HasSubstr("rank 0: process "));
  EXPECT_THAT(std::string(left.message()),
              HasSubstr("which coordinates the job, died"));
}

/// Rank 0 does not answer what it does, so that the coordinator has not
/// announced rank 1's error when it is lost.
TEST(CoordinationTest,
     AnErrorThatALostCoordinatorDidNotAnnounceStaysWithItsRank) {
  auto job = std::make_unique<Job>(2);
  std::promise<void> reported;
  std::promise<void> lost;
  absl::Status own_of_0 = absl::UnknownError("not called");
  absl::Status own_of_1;
  const auto write_to = [](absl::Status& to) {
    ClientOptions options;
    options.on_failure = [&to](const FailureNotice& notice,
                               const absl::Status& own) {
      EXPECT_TRUE(notice.process_lost);
      to = own;
    };
    return options;
  };
  std::thread rank_1([&] {
    auto client = job->Join(ThisProcess(1, 2), kToken, write_to(own_of_1));
    ASSERT_TRUE(client.ok()) << client.status();
    AwaitAll(**client);
    AwaitAll(**client);
    (*client)->Report({.world_ranks = {0, 1},
                       .of_group = true,
                       .error = absl::InternalError("of both")});
    (*client)->Report({.world_ranks = {1},
                       .error = absl::DeadlineExceededError("rank 0 is late")});
    (*client)->Report(
        {.world_ranks = {1}, .error = absl::InternalError("bad")});
    reported.set_value();
    (*client)->Leave().IgnoreError();
    lost.set_value();
  });
  auto rank_0 = job->Join(ThisProcess(0, 2), kToken, write_to(own_of_0));
  ASSERT_TRUE(rank_0.ok()) << rank_0.status();
  // After the first heartbeat, which must not wait.
  AwaitAll(**rank_0);
  (*rank_0)->SetActivity([&, first = true]() mutable {
    if (std::exchange(first, false)) lost.get_future().wait();
    return std::string();
  });
  AwaitAll(**rank_0);
  reported.get_future().wait();
  job.reset();
  rank_1.join();
  (*rank_0)->Leave().IgnoreError();
  EXPECT_EQ(own_of_0, absl::OkStatus());
  EXPECT_EQ(own_of_1, absl::InternalError("bad"));
}

TEST(CoordinationTest, TheWatchdogEndsARankThatDoesNotReturn) {
  Job job(1);
  std::promise<std::string> ended;
  ClientOptions options;
  options.leave = absl::Milliseconds(50);
  options.end_process = [&](const std::string& message) {
    ended.set_value(message);
  };
  auto client = job.Join(ThisProcess(0, 1), kToken, options);
  ASSERT_TRUE(client.ok()) << client.status();
  (*client)->Report({.world_ranks = {0}, .error = absl::InternalError("bad")});
  EXPECT_THAT(ended.get_future().get(),
              HasSubstr("rank 0 did not come back within 50ms "
                        "after the job failed, and its process is ended: "
                        "rank 0: bad"));
  (*client)->Leave().IgnoreError();
}

/// Printing may block, for example if no process reads a pipe.
TEST(CoordinationTest, TheWatchdogEndsARankWhileOnFailureIsBlocked) {
  Job job(1);
  std::promise<void> ended;
  std::future<void> has_ended = ended.get_future();
  ClientOptions options;
  options.leave = absl::Milliseconds(50);
  options.on_failure = [&](const FailureNotice&, const absl::Status&) {
    EXPECT_EQ(has_ended.wait_for(std::chrono::seconds(30)),
              std::future_status::ready)
        << "the watchdog waits for what is announced";
  };
  options.end_process = [&](const std::string&) { ended.set_value(); };
  auto client = job.Join(ThisProcess(0, 1), kToken, options);
  ASSERT_TRUE(client.ok()) << client.status();
  (*client)->Report({.world_ranks = {0}, .error = absl::InternalError("bad")});
  while (!(*client)->failure().has_value()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  absl::SleepFor(absl::Milliseconds(200));
  (*client)->Leave().IgnoreError();
}

TEST(CoordinationTest, TextsOfAnyBytesAndLengthPass) {
  const std::string bytes = "\xff\xfe\x80/model";
  Job job(2);
  const auto results = job.RunAll([&](CoordinationClient& client, int rank) {
    client.SetActivity([&] { return bytes + std::string(5 << 20, 'a'); });
    const auto got = client.Gather(bytes, bytes, absl::Seconds(60));
    EXPECT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got.value_or(std::vector<std::string>(2)).at(0), bytes);
    EXPECT_EQ(
        client.Gather("long", std::string(5 << 20, 'v'), absl::Seconds(60))
            .status()
            .code(),
        absl::StatusCode::kResourceExhausted);
    if (rank == 1) {
      client.Report(
          {.world_ranks = {1},
           .error = absl::InternalError(bytes + std::string(5 << 20, 'e'))});
    }
    const absl::Status left = client.Leave();
    client.SetActivity(nullptr);
    return left;
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(result.message()),
                HasSubstr(absl::StrCat("rank 1: ", bytes, "eee")));
    EXPECT_LT(result.message().size(), size_t{17} << 10);
  }
  Member self = ThisProcess(0, 1);
  self.set_host(bytes);
  self.set_wrong(bytes);
  Job another(1);
  EXPECT_THAT(std::string(another.Join(self).status().message()),
              HasSubstr(absl::StrCat(" on host ", bytes, "): ", bytes)));
}

TEST(CoordinationTest, ProgramIdIsTheBuildId) {
  EXPECT_THAT(ProgramId(), HasSubstr("build "));
  EXPECT_EQ(ProgramId(), ProgramId());
}

TEST(CoordinationTest, AJobOfMoreRanksThanFilesIsRefused) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max == RLIM_INFINITY) files.rlim_max = 1 << 30;
  const auto server = CoordinationServer::Start(
      kHost, 0, ThisProcess(0, static_cast<int>(files.rlim_max)), kToken,
      Patient());
  EXPECT_EQ(
      server.status(),
      absl::ResourceExhaustedError(absl::StrCat(
          "of a job of ", files.rlim_max, " ranks needs ", files.rlim_max + 256,
          " file descriptors, a connection to each rank among them, and "
          "its process may have ",
          files.rlim_max, ": raise the limit where it is started (ulimit ",
          "-n ", files.rlim_max + 256, ")")));
}

int Threads() {
  int threads = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    threads += entry.is_directory() ? 1 : 0;
  }
  return threads;
}

/// As of a job that has just ended, or of another program.
TEST(CoordinationTest, RanksRetryWhereConnectionsEndWithoutAnAnswer) {
  int port = 0;
  auto other = Listen(kHost, port);
  ASSERT_TRUE(other.ok()) << other.status();
  absl::Status result;
  std::thread rank_1([&] {
    auto client = CoordinationClient::Connect(kHost, port, ThisProcess(1, 2),
                                              kToken, {.times = Patient()});
    ASSERT_TRUE(client.ok()) << client.status();
    result = (*client)->AwaitStart();
    (*client)->Leave().IgnoreError();
  });
  const absl::Time until = absl::Now() + absl::Seconds(60);
  for (int ended = 0; ended < 3 && absl::Now() < until;) {
    const File connection(accept((*other)[0].fd(), nullptr, nullptr));
    if (connection.fd() >= 0) ++ended;
    absl::SleepFor(absl::Milliseconds(1));
  }
  other->clear();
  auto server = CoordinationServer::Start(kHost, port, ThisProcess(0, 2),
                                          kToken, Patient());
  ASSERT_TRUE(server.ok()) << server.status();
  auto rank_0 = CoordinationClient::Connect(kHost, port, ThisProcess(0, 2),
                                            kToken, {.times = Patient()});
  ASSERT_TRUE(rank_0.ok()) << rank_0.status();
  EXPECT_TRUE((*rank_0)->Leave().ok());
  *rank_0 = nullptr;
  rank_1.join();
  EXPECT_TRUE(result.ok()) << result;
}

TEST(CoordinationTest, NothingIsLeftOfAJob) {
  // The first job creates what the libraries keep permanently.
  const auto run = [] {
    Job job(2);
    job.RunAll([](CoordinationClient& client, int) { return client.Leave(); });
  };
  run();
  const int threads = Threads();
  const int files = Files();
  for (int i = 0; i < 5; ++i) run();
  for (int i = 0; i < 3000 && (Threads() > threads || Files() > files); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_LE(Threads(), threads);
  EXPECT_LE(Files(), files);
}

}  // namespace
}  // namespace crosshatch::coordination
