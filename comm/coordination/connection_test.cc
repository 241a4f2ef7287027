// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/connection.h"

#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/coordination_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

/// Returns a connection to which nothing but `bytes` is sent.
Connection ConnectionWith(const std::string& bytes) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends),
      0);
  const File sender(ends[0]);
  const int size = 4 << 20;
  setsockopt(sender.fd(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  EXPECT_EQ(send(sender.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return Connection(File(ends[1]));
}

TEST(ConnectionTest, AConnectionReceivesABoundedNumberOfBytesAtOnce) {
  // More than what is received at once, of whole messages and of one that does
  // not end.
  for (const std::string& bytes :
       {std::string(100000, '\0'),
        Framed(std::string(200000, 'x')).substr(0, 100000)}) {
    Connection connection = ConnectionWith(bytes);
    size_t num_messages = 0;
    const auto count = [&](absl::string_view) {
      ++num_messages;
      return true;
    };
    EXPECT_TRUE(connection.Receive(count));
    EXPECT_TRUE(connection.has_more());
    EXPECT_LE(num_messages, size_t{64} << 8);
    EXPECT_FALSE(connection.Receive(count)) << "the other end is closed";
    EXPECT_EQ(num_messages, bytes[1] == '\0' ? 25000u : 0u);
  }
}

TEST(ConnectionTest, NoMessageIsTakenOfAConnectionThatIsToBeClosed) {
  Connection connection = ConnectionWith(std::string(100000, '\0'));
  size_t num_messages = 0;
  EXPECT_TRUE(connection.Receive([&](absl::string_view) {
    ++num_messages;
    return false;
  }));
  EXPECT_EQ(num_messages, 1u);
}

TEST(ConnectionTest, ConnectionsShareAMessageThatIsNotSentYet) {
  constexpr size_t kBytes = size_t{3} << 20;
  Gathered message;
  message.add_blobs(std::string(kBytes, 'x'));
  const Frame frame = MakeFrame(message);
  std::vector<Connection> senders;
  std::vector<Connection> receivers;
  for (int i = 0; i < 3; ++i) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                         ends),
              0);
    senders.emplace_back(File(ends[0])).Send(frame);
    receivers.emplace_back(File(ends[1]));
  }
  EXPECT_EQ(frame.use_count(), 4);
  for (int i = 0; i < 3; ++i) {
    size_t received = 0;
    while (received == 0) {
      ASSERT_TRUE(receivers[i].Receive([&](absl::string_view bytes) {
        Gathered back;
        EXPECT_TRUE(back.ParseFromString(std::string(bytes)));
        received = back.blobs(0).size();
        return true;
      }));
      senders[i].Flush();
    }
    EXPECT_EQ(received, kBytes);
    EXPECT_FALSE(senders[i].has_queued());
  }
  EXPECT_EQ(frame.use_count(), 1);
}

TEST(ConnectionTest, EachOfSeveralAddressesIsListenedOnOnce) {
  int port = 0;
  auto listeners = Listen("127.0.0.2,127.0.0.3,127.0.0.2", port);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  ASSERT_EQ(listeners->size(), 2u);
  for (const std::string host : {"127.0.0.2", "127.0.0.3"}) {
    // Nothing listens on the first.
    auto dialed =
        Dial("127.0.0.4," + host, port, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(dialed.ok()) << dialed.status();
    EXPECT_EQ(Connection(*std::move(dialed)).PeerHost(), host);
  }
  int any = 0;
  auto named = Listen("127.0.0.1,localhost", any);
  EXPECT_TRUE(named.ok()) << named.status();
}

// Another host may have some of the addresses, such as a bridge's.
TEST(ConnectionTest, AHostWithSomeOfTheAddressesIsAnotherHost) {
  // These are of no host (RFC 5737).
  for (const std::string hosts :
       {"192.0.2.1,127.0.0.2,192.0.2.2", "127.0.0.2,192.0.2.1", "192.0.2.1"}) {
    int port = 0;
    const absl::Status status = Listen(hosts, port).status();
    EXPECT_EQ(status, absl::UnavailableError(
                          absl::StrCat("cannot listen on ", hosts, ":", port,
                                       ": 192.0.2.1 is not this host's")));
  }
}

TEST(ConnectionTest, ListenNamesWhatIsWrong) {
  int port = 0;
  auto listener = Listen(kHost, port);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(Listen(kHost, port).status(),
            absl::UnavailableError(absl::StrCat("cannot listen on ", kHost, ":",
                                                port, ": the port is in use")));
  int any = 0;
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  rlimit none = files;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status full = Listen(kHost, any).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(full, absl::ResourceExhaustedError(absl::StrCat(
                      "cannot listen on ", kHost, ":0: Too many open files")));
}

TEST(ConnectionTest, BothEndsSendWithoutDelay) {
  int port = 0;
  auto listeners = Listen(kHost, port);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  auto dialed = Dial(kHost, port, absl::Now() + absl::Seconds(60));
  ASSERT_TRUE(dialed.ok()) << dialed.status();
  const Connection client(*std::move(dialed));
  const Connection server(File(accept((*listeners)[0].fd(), nullptr, nullptr)));
  for (const int fd : {client.fd(), server.fd()}) {
    int no_delay = 0;
    socklen_t size = sizeof no_delay;
    ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size), 0);
    EXPECT_NE(no_delay, 0);
  }
}

}  // namespace
}  // namespace crosshatch::coordination
