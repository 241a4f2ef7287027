// SPDX-License-Identifier: Apache-2.0
//
// Links between processes of this host, by shared memory and by TCP as between
// hosts. Processes exchange their addresses through sockets to the test.

#include "crosshatch/comm/ucx/ucx_link.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kLost = 1000;  // The exit status of a killed process.

bool WriteBlob(int socket, const std::string& blob) {
  const uint64_t size = blob.size();
  const std::string text =
      std::string(reinterpret_cast<const char*>(&size), sizeof size) + blob;
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t sent =
        send(socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

bool ReadBlob(int socket, std::string& blob) {
  uint64_t size = 0;
  if (recv(socket, &size, sizeof size, MSG_WAITALL) != sizeof size) {
    return false;
  }
  blob.resize(size);
  return size == 0 || recv(socket, blob.data(), size, MSG_WAITALL) ==
                          static_cast<ssize_t>(size);
}

/// Runs `fn` in `size` processes, each with its link. Returns their exit
/// statuses: 0, 1 after a printed error, or kLost.
std::vector<int> RunProcesses(
    int size, const std::function<absl::Status(std::unique_ptr<Link>)>& fn,
    const std::function<void(int rank)>& begin = [](int) {}) {
  std::vector<int> sockets;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const pid_t process = fork();
    if (process == 0) {
      for (int other : sockets) close(other);
      close(ends[0]);
      begin(rank);
      const UcxJoin join{
          .rank = rank,
          .size = size,
          .gather = [&](std::string blob)
              -> absl::StatusOr<std::vector<std::string>> {
            std::vector<std::string> all(static_cast<size_t>(size));
            bool done = WriteBlob(ends[1], blob);
            for (std::string& each : all) {
              done = done && ReadBlob(ends[1], each);
            }
            if (!done) return absl::AbortedError("a process is gone");
            return all;
          }};
      const absl::Status status = [&]() -> absl::Status {
        CH_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                            OpenUcxLink(join, /*ranks=*/0, absl::Seconds(30),
                                        [] { return absl::OkStatus(); }));
        return fn(std::move(link));
      }();
      if (!status.ok()) std::cerr << "rank " << rank << ": " << status << "\n";
      std::cerr.flush();
      _exit(status.ok() ? 0 : 1);
    }
    close(ends[1]);
    sockets.push_back(ends[0]);
    processes.push_back(process);
  }
  bool all_gave = true;
  while (all_gave) {
    std::vector<std::string> blobs(sockets.size());
    for (size_t i = 0; i < sockets.size(); ++i) {
      all_gave = all_gave && ReadBlob(sockets[i], blobs[i]);
    }
    for (int socket : sockets) {
      for (const std::string& blob : blobs) {
        if (all_gave) WriteBlob(socket, blob);
      }
    }
  }
  for (int socket : sockets) close(socket);
  std::vector<int> statuses;
  for (pid_t process : processes) {
    int status = -1;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : kLost);
  }
  return statuses;
}

/// Returns the messages that this process has received and not used.
std::vector<std::pair<int, std::string>>& Notes() {
  static auto* const messages = new std::vector<std::pair<int, std::string>>;
  return *messages;
}

absl::Status Look(Link& link) {
  int from = -1;
  std::string message;
  CH_RETURN_IF_ERROR(link.TakeControl(from, message));
  if (from >= 0) Notes().emplace_back(from, message);
  return absl::OkStatus();
}

absl::Status Check(bool is_so, const std::string& what) {
  return is_so ? absl::OkStatus() : absl::DataLossError(what);
}

absl::Status Await(Link& link, LinkRequest& request) {
  const auto until = steady_clock::now() + std::chrono::seconds(20);
  while (request.pending) {
    CH_RETURN_IF_ERROR(Look(link));
    CH_RETURN_IF_ERROR(link.Test(request));
    CH_RETURN_IF_ERROR(
        Check(steady_clock::now() < until,
              absl::StrCat("a message with rank ", request.peer, " is late")));
  }
  return absl::OkStatus();
}

/// Waits for the next message of `from`.
absl::StatusOr<std::string> NextNote(Link& link, int from) {
  const auto until = steady_clock::now() + std::chrono::seconds(20);
  while (true) {
    for (size_t i = 0; i < Notes().size(); ++i) {
      if (Notes()[i].first != from) continue;
      std::string message = Notes()[i].second;
      Notes().erase(Notes().begin() + static_cast<std::ptrdiff_t>(i));
      return message;
    }
    CH_RETURN_IF_ERROR(Look(link));
    CH_RETURN_IF_ERROR(Check(steady_clock::now() < until,
                             absl::StrCat("a message of ", from, " is late")));
  }
}

absl::Status Barrier(Link& link) {
  for (int i = 1; i < link.size(); ++i) {
    const int to = (link.rank() + i) % link.size();
    LinkRequest request;
    const std::string message = "barrier";
    CH_RETURN_IF_ERROR(link.SendControl(to, message, request));
    CH_RETURN_IF_ERROR(Await(link, request));
  }
  for (int i = 1; i < link.size(); ++i) {
    CH_ASSIGN_OR_RETURN(const std::string message,
                        NextNote(link, (link.rank() + i) % link.size()));
    CH_RETURN_IF_ERROR(Check(message == "barrier", "another message"));
  }
  return absl::OkStatus();
}

/// Returns the addresses on which this process listens.
std::set<std::string> Listeners() {
  std::set<std::string> inodes;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string target = read_symlink(fd.path(), none).string();
    if (target.starts_with("socket:[")) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<std::string> found;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6",
                            "/proc/self/net/udp", "/proc/self/net/udp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, word, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> word;
      words >> inode;
      if (inodes.count(inode) > 0 && remote.ends_with(":0000")) {
        found.insert(local.substr(0, local.find(':')));
      }
    }
  }
  return found;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Whether to use TCP, as between hosts.
class UcxLinkTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    setenv("UCX_TLS", "self,tcp", /*overwrite=*/1);
    setenv("UCX_NET_DEVICES", "lo", /*overwrite=*/1);
  }
  void TearDown() override {
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
  }
};

INSTANTIATE_TEST_SUITE_P(By, UcxLinkTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& param) {
                           return param.param ? "Tcp" : "SharedMemory";
                         });

TEST_P(UcxLinkTest, ControlMessagesAndDataOfAllSizesArriveInOrder) {
  const auto text = [](int from, size_t bytes) {
    std::string filled(bytes, static_cast<char>('a' + from));
    if (bytes > 2) filled[bytes / 2] = static_cast<char>(bytes);
    return filled;
  };
  const auto run = [&](std::unique_ptr<Link> link) -> absl::Status {
    const int n = link->size();
    const std::vector<size_t> sizes = {0,     1,      7,       3000, 9000,
                                       70000, 300007, 5000011, 2};
    for (const bool receive_first : {true, false}) {
      std::vector<LinkRequest> sends, receives;
      std::vector<std::string> from, to;
      sends.reserve(sizes.size() * n);
      const auto receive = [&]() -> absl::Status {
        for (size_t bytes : sizes) {
          for (int r = 0; r < n; ++r) {
            if (r == link->rank()) continue;
            to.emplace_back(bytes, '?');
            receives.emplace_back();
            CH_RETURN_IF_ERROR(
                link->Receive(r, 5, to.back().data(), bytes, receives.back()));
          }
        }
        return absl::OkStatus();
      };
      to.reserve(sizes.size() * n);
      from.reserve(sizes.size() * n);
      receives.reserve(sizes.size() * n);
      if (receive_first) CH_RETURN_IF_ERROR(receive());
      for (size_t bytes : sizes) {
        for (int r = 0; r < n; ++r) {
          if (r == link->rank()) continue;
          from.push_back(text(link->rank(), bytes));
          sends.emplace_back();
          CH_RETURN_IF_ERROR(
              link->Send(r, 5, from.back().data(), bytes, sends.back()));
          sends.emplace_back();
          CH_RETURN_IF_ERROR(link->SendControl(r, from.back(), sends.back()));
        }
      }
      if (!receive_first) CH_RETURN_IF_ERROR(receive());
      for (auto* requests : {&receives, &sends}) {
        for (LinkRequest& request : *requests) {
          CH_RETURN_IF_ERROR(Await(*link, request));
        }
      }
      for (int r = 0; r < n; ++r) {
        if (r == link->rank()) continue;
        for (size_t bytes : sizes) {
          CH_ASSIGN_OR_RETURN(const std::string message, NextNote(*link, r));
          CH_RETURN_IF_ERROR(Check(message == text(r, bytes),
                                   absl::StrCat("message of ", bytes)));
        }
      }
      size_t at = 0;
      for (size_t bytes : sizes) {
        for (int r = 0; r < n; ++r) {
          if (r == link->rank()) continue;
          CH_RETURN_IF_ERROR(
              Check(to[at++] == text(r, bytes), absl::StrCat(bytes, " bytes")));
        }
      }
      CH_RETURN_IF_ERROR(Barrier(*link));
    }
    CloseUcxLink(std::move(link), absl::Seconds(10));
    return absl::OkStatus();
  };
  EXPECT_EQ(RunProcesses(3, run), std::vector<int>(3, 0));
}

TEST_P(UcxLinkTest, TheOthersGoOnWithoutAPeerThatIsKilled) {
  constexpr size_t kBytes = 8 << 20;
  const auto run = [&](std::unique_ptr<Link> link) -> absl::Status {
    CH_RETURN_IF_ERROR(Barrier(*link));
    const int me = link->rank();
    std::vector<std::string> memory(6, std::string(kBytes, 'x'));
    std::vector<LinkRequest> with_lost(4);
    if (me < 2) {
      for (int i = 0; i < 2; ++i) {
        CH_RETURN_IF_ERROR(
            link->Send(2, 7 + i, memory[i].data(), kBytes, with_lost[i]));
        CH_RETURN_IF_ERROR(link->Receive(2, 7 + i, memory[2 + i].data(), kBytes,
                                         with_lost[2 + i]));
      }
    } else {
      std::vector<LinkRequest> requests(4);
      for (int r = 0; r < 2; ++r) {
        CH_RETURN_IF_ERROR(
            link->Send(r, 7, memory[r].data(), kBytes, requests[r]));
        CH_RETURN_IF_ERROR(
            link->Receive(r, 7, memory[2 + r].data(), kBytes, requests[2 + r]));
      }
      for (int i = 0; i < 30; ++i) CH_RETURN_IF_ERROR(Look(*link));
      raise(SIGKILL);
    }
    const auto until = steady_clock::now() + milliseconds(400);
    while (steady_clock::now() < until) {
      CH_RETURN_IF_ERROR(Look(*link));
      for (LinkRequest& request : with_lost) {
        CH_RETURN_IF_ERROR(link->Test(request));
      }
    }
    CH_RETURN_IF_ERROR(Check(with_lost[1].pending && with_lost[3].pending,
                             "what the lost rank did not come to is done"));
    LinkRequest to_lost;
    CH_RETURN_IF_ERROR(link->SendControl(2, "are you there?", to_lost));
    for (LinkRequest& request : with_lost) link->Forget(request);
    link->Forget(to_lost);
    // Both again, with the remaining data.
    LinkRequest sent, received;
    CH_RETURN_IF_ERROR(
        link->Receive(1 - me, 9, memory[5].data(), kBytes, received));
    memory[4].assign(kBytes, static_cast<char>('0' + me));
    CH_RETURN_IF_ERROR(link->Send(1 - me, 9, memory[4].data(), kBytes, sent));
    CH_RETURN_IF_ERROR(Await(*link, received));
    CH_RETURN_IF_ERROR(Await(*link, sent));
    CH_RETURN_IF_ERROR(Check(
        memory[5] == std::string(kBytes, static_cast<char>('1' - me)), "data"));
    const auto before = steady_clock::now();
    link.reset();
    return Check(steady_clock::now() - before < std::chrono::seconds(4),
                 "a link takes long to end");
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(RunProcesses(3, run), (std::vector<int>{0, 0, kLost}));
  }
}

TEST_P(UcxLinkTest, AReceiveThatIsCancelledTakesNoMessage) {
  const auto run = [](std::unique_ptr<Link> link) -> absl::Status {
    for (const size_t bytes : {size_t{100}, size_t{1} << 20}) {
      std::string mine(bytes, 'm'), first(bytes, '?'), second(bytes, '?');
      if (link->rank() == 0) {
        LinkRequest cancelled, received;
        CH_RETURN_IF_ERROR(link->Receive(1, 3, first.data(), bytes, cancelled));
        CH_RETURN_IF_ERROR(link->CancelReceive(cancelled));
        CH_RETURN_IF_ERROR(Await(*link, cancelled));
        CH_RETURN_IF_ERROR(Barrier(*link));
        CH_RETURN_IF_ERROR(link->Receive(1, 3, second.data(), bytes, received));
        CH_RETURN_IF_ERROR(Await(*link, received));
        CH_RETURN_IF_ERROR(Check(first == std::string(bytes, '?'), "first"));
        CH_RETURN_IF_ERROR(Check(second == mine, "second"));
      } else {
        CH_RETURN_IF_ERROR(Barrier(*link));
        LinkRequest sent;
        CH_RETURN_IF_ERROR(link->Send(0, 3, mine.data(), bytes, sent));
        CH_RETURN_IF_ERROR(Await(*link, sent));
      }
      CH_RETURN_IF_ERROR(Barrier(*link));
    }
    CloseUcxLink(std::move(link), absl::Seconds(10));
    return absl::OkStatus();
  };
  EXPECT_EQ(RunProcesses(2, run), std::vector<int>(2, 0));
}

TEST_P(UcxLinkTest, SleepsUntilAMessageComesOrItsOwnRankNotifies) {
  const auto run = [](std::unique_ptr<Link> link) -> absl::Status {
    CH_RETURN_IF_ERROR(Barrier(*link));
    if (link->rank() == 0) {
      std::this_thread::sleep_for(milliseconds(600));
      LinkRequest sent;
      CH_RETURN_IF_ERROR(link->SendControl(1, "good morning", sent));
      CH_RETURN_IF_ERROR(Await(*link, sent));
      CH_RETURN_IF_ERROR(NextNote(*link, 1).status());
      return Barrier(*link);
    }
    const double before = CpuSeconds();
    const auto slept_at = steady_clock::now();
    int sleeps = 0;
    while (Notes().empty()) {
      const uint32_t seen = link->Arm();
      CH_RETURN_IF_ERROR(Look(*link));
      if (!Notes().empty()) {
        link->Disarm();
        break;
      }
      link->Sleep(seen, std::chrono::seconds(10));
      ++sleeps;
      CH_RETURN_IF_ERROR(
          Check(steady_clock::now() - slept_at < std::chrono::seconds(5),
                "no message woke it"));
    }
    CH_RETURN_IF_ERROR(NextNote(*link, 0).status());
    // A few spurious wake-ups are fine; spinning takes 0.6 s.
    CH_RETURN_IF_ERROR(
        Check(sleeps < 50 && CpuSeconds() - before < 0.05,
              absl::StrCat(sleeps, " sleeps, CPU ", CpuSeconds() - before)));
    std::thread ringer([&] {
      std::this_thread::sleep_for(milliseconds(100));
      link->Notify(1);
    });
    const auto again_at = steady_clock::now();
    while (steady_clock::now() - again_at < milliseconds(90)) {
      const uint32_t seen = link->Arm();
      CH_RETURN_IF_ERROR(Look(*link));
      link->Sleep(seen, std::chrono::seconds(10));
    }
    ringer.join();
    CH_RETURN_IF_ERROR(
        Check(steady_clock::now() - again_at < std::chrono::seconds(5),
              "its own ring did not wake it"));
    LinkRequest sent;
    CH_RETURN_IF_ERROR(link->SendControl(0, "awake", sent));
    CH_RETURN_IF_ERROR(Await(*link, sent));
    return Barrier(*link);
  };
  EXPECT_EQ(RunProcesses(2, run), std::vector<int>(2, 0));
}

TEST_P(UcxLinkTest, NothingListensButOnLoopback) {
  const bool tcp = GetParam();
  const auto run = [tcp](std::unique_ptr<Link> link) -> absl::Status {
    CH_RETURN_IF_ERROR(Barrier(*link));
    std::set<std::string> expected;
    if (tcp) expected.insert("0100007F");
    const std::set<std::string> found = Listeners();
    CH_RETURN_IF_ERROR(Check(
        found == expected, absl::StrCat(found.size(), " listen: ",
                                        found.empty() ? "" : *found.begin())));
    return Barrier(*link);
  };
  EXPECT_EQ(RunProcesses(2, run), std::vector<int>(2, 0));
}

constexpr uid_t kNobody = 65534;

/// Returns whether processes can change their user.
bool CanBeNobody() {
  const pid_t process = fork();
  if (process == 0) _exit(setresuid(kNobody, kNobody, kNobody) == 0 ? 0 : 1);
  int status = -1;
  return waitpid(process, &status, 0) == process && status == 0;
}

/// Neither can open the other's memory.
TEST(UcxLocationTest, ProcessesOfDifferentUsersExchangeData) {
  if (!CanBeNobody()) {
    std::cerr << "NOT CHECKED: processes of two users: this is not root\n";
    return;
  }
  const auto run = [](std::unique_ptr<Link> link) -> absl::Status {
    CH_RETURN_IF_ERROR(Barrier(*link));
    const std::string mine(1 << 20, static_cast<char>('0' + link->rank()));
    std::string other(1 << 20, '?');
    LinkRequest sent, received;
    CH_RETURN_IF_ERROR(link->Receive(1 - link->rank(), 3, other.data(),
                                     other.size(), received));
    CH_RETURN_IF_ERROR(
        link->Send(1 - link->rank(), 3, mine.data(), mine.size(), sent));
    CH_RETURN_IF_ERROR(Await(*link, received));
    CH_RETURN_IF_ERROR(Await(*link, sent));
    CH_RETURN_IF_ERROR(Barrier(*link));
    const char expected = static_cast<char>('1' - link->rank());
    return Check(other == std::string(other.size(), expected), "data");
  };
  EXPECT_EQ(RunProcesses(2, run,
                         [](int rank) {
                           if (rank == 0) return;
                           EXPECT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
                         }),
            std::vector<int>(2, 0));
}

TEST(UcxLocationTest, AConnectionThatBreaksIsAnErrorAfterAWhile) {
  setenv("UCX_TLS", "self,tcp", /*overwrite=*/1);
  const auto run = [](std::unique_ptr<Link> link) -> absl::Status {
    CH_RETURN_IF_ERROR(Barrier(*link));
    if (link->rank() == 1) raise(SIGKILL);
    std::string memory(1 << 20, '?');
    LinkRequest received;
    CH_RETURN_IF_ERROR(
        link->Receive(1, 3, memory.data(), memory.size(), received));
    const auto began = steady_clock::now();
    const absl::Status status = Await(*link, received);
    const auto took = steady_clock::now() - began;
    return Check(absl::IsUnavailable(status) &&
                     absl::StrContains(std::string(status.message()),
                                       "of rank 0 to rank 1 broke: ") &&
                     took > std::chrono::seconds(4),
                 status.ToString());
  };
  EXPECT_EQ(RunProcesses(2, run), (std::vector<int>{0, kLost}));
  unsetenv("UCX_TLS");
}

}  // namespace
}  // namespace crosshatch::internal
