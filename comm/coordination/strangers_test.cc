// SPDX-License-Identifier: Apache-2.0
// Connections to the coordinator of what is not a rank of the job.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/connection.h"
#include "crosshatch/comm/coordination/coordination_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

/// Opens connections that send only `first`.
std::vector<int> Strangers(int port, int count, const std::string& first) {
  std::vector<int> sockets;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, kHost, &to.sin_addr);
  for (int i = 0; i < count; ++i) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        connect(sockets.back(), reinterpret_cast<sockaddr*>(&to), sizeof to),
        0);
    EXPECT_EQ(send(sockets.back(), first.data(), first.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(first.size()));
  }
  return sockets;
}

TEST(CoordinationTest, StrangersTakeFewFilesAndDelayNoRank) {
  constexpr int kMany = 300;
  for (const std::string first :
       {"", "O", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0"}) {
    Job job(2);
    const int files = Files();
    const std::vector<int> sockets = Strangers(job.port(), kMany, first);
    const auto results = job.RunAll([&](CoordinationClient& client, int) {
      EXPECT_TRUE(client.Gather("b", "", absl::Seconds(60)).ok());
      // The descriptors of the foreign connections, the coordinator and the
      // ranks.
      EXPECT_LT(Files() - files - kMany, 180) << "after '" << first << "'";
      return client.Leave();
    });
    for (const absl::Status& result : results) {
      EXPECT_TRUE(result.ok()) << result;
    }
    for (const int each : sockets) close(each);
  }
}

TEST(CoordinationTest, RanksJoinAndLeaveWhileStrangersKeepComing) {
  Job job(4);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> floods;
  for (const std::string first : {"", "O"}) {
    floods.emplace_back([&, first] {
      std::deque<int> sockets;
      while (!is_over) {
        sockets.push_back(Strangers(job.port(), 1, first)[0]);
        if (sockets.size() < 500) continue;
        close(sockets.front());
        sockets.pop_front();
      }
      for (const int each : sockets) close(each);
    });
  }
  for (const absl::Status& result :
       job.RunAll([](CoordinationClient&client, int) {
         EXPECT_TRUE(client.Gather("b", "", absl::Seconds(60)).ok());
         return client.Leave();
       })) {
    EXPECT_TRUE(result.ok()) << result;
  }
  is_over = true;
  for (std::thread& flood : floods) flood.join();
}

/// One sender without the token that never pauses must not keep the
/// coordinator's only thread.
TEST(CoordinationTest, RanksJoinAndGatherWhileAStrangerStreams) {
  // Messages without bytes, which take longer to receive than to send.
  const std::string stream(1 << 20, '\0');
  Job job(2);
  std::atomic<bool> is_over = false;
  std::promise<void> streams;
  size_t most_sent = 0;
  std::thread stranger([&] {
    bool is_first = true;
    while (!is_over) {
      const int to = Strangers(job.port(), 1, "")[0];
      size_t sent = 0;
      while (!is_over) {
        const ssize_t count =
            send(to, stream.data(), stream.size(), MSG_NOSIGNAL);
        if (count <= 0) break;
        sent += static_cast<size_t>(count);
        if (std::exchange(is_first, false)) streams.set_value();
      }
      most_sent = std::max(most_sent, sent);
      close(to);
    }
  });
  streams.get_future().wait();
  for (const absl::Status& result :
       job.RunAll([](CoordinationClient&client, int) {
         for (int i = 0; i < 20; ++i) {
           const auto met = client.Gather("b", "", absl::Seconds(60));
           if (!met.ok()) return met.status();
         }
         return client.Leave();
       })) {
    EXPECT_TRUE(result.ok()) << result;
  }
  is_over = true;
  stranger.join();
  // The system's buffers take some, however little the coordinator reads.
  EXPECT_LT(most_sent, size_t{64} << 20)
      << "the coordinator goes on to read what a refused process sends";
}

/// The coordinator may receive both at once.
TEST(CoordinationTest, ALongMessageMayFollowTheRegistrationAtOnce) {
  Job job(1);
  ClientMessage registration;
  registration.mutable_registration()->set_token(kToken);
  *registration.mutable_registration()->mutable_member() = ThisProcess(0, 1);
  ClientMessage gather;
  gather.mutable_gather()->set_name("g");
  gather.mutable_gather()->set_blob(std::string(60000, 'x'));
  gather.mutable_gather()->set_timeout_ms(60000);
  ClientMessage goodbye;
  goodbye.mutable_goodbye();
  auto socket = Dial(kHost, job.port(), absl::Now() + absl::Seconds(60));
  ASSERT_TRUE(socket.ok()) << socket.status();
  const std::string all = Framed(registration.SerializeAsString()) +
                          Framed(gather.SerializeAsString()) +
                          Framed(goodbye.SerializeAsString());
  ASSERT_EQ(send(socket->fd(), all.data(), all.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(all.size()));
  Connection connection(*std::move(socket));
  size_t gathered = 0;
  bool is_dismissed = false;
  bool lasts = true;
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (lasts && !is_dismissed && absl::Now() < until) {
    lasts = connection.Receive([&](absl::string_view bytes) {
      ServerMessage message;
      EXPECT_TRUE(message.ParseFromString(std::string(bytes)));
      if (message.has_gathered()) gathered = message.gathered().blobs(0).size();
      is_dismissed |= message.has_dismissed();
      return true;
    });
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(gathered, 60000u);
  EXPECT_TRUE(is_dismissed);
}

}  // namespace
}  // namespace crosshatch::coordination
