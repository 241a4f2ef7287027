// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/coordination/wire.h"

namespace crosshatch::coordination {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kMostWaiting = 128;
constexpr int64_t kLongestWaitMs = 10000;
/// If the connection limit is reached: the time that a slow client of the job
/// may need.
constexpr int64_t kLeastWaitMs = 1000;

int64_t NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

void SetPort(sockaddr_storage& address, int port) {
  const uint16_t in_order = htons(static_cast<uint16_t>(port));
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = in_order;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = in_order;
  }
}

/// Returns an address that no file stands for: it vanishes with its socket.
/// \pre the name fits.
socklen_t SetName(sockaddr_storage& address, absl::string_view name) {
  auto& socket = reinterpret_cast<sockaddr_un&>(address);
  socket.sun_family = AF_UNIX;
  name.copy(socket.sun_path + 1, sizeof socket.sun_path - 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                name.size());
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

Acceptor::Acceptor(std::function<void(int fd)> take) : take_(std::move(take)) {}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(
    const std::string& host, int port, std::function<void(int fd)> take) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(take)));
  Acceptor& a = *acceptor;
  CH_RETURN_IF_ERROR(a.Bind(host, port));
  a.end_ = eventfd(0, EFD_CLOEXEC);
  if (a.end_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no file to listen with: ", std::strerror(errno)));
  }
  CH_ASSIGN_OR_RETURN(
      a.thread_, StartThread("the coordinator's listener", [&a] { a.Run(); }));
  return acceptor;
}

int Acceptor::Bind(const sockaddr_storage& address, socklen_t size) {
  const int fd =
      socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // The host may lack a family of addresses.
  if (fd < 0) return EADDRNOTAVAIL;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ss_family == AF_INET6) {
    SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const int why = errno;
    close(fd);
    return why;
  }
  listeners_.push_back(fd);
  return 0;
}

absl::Status Acceptor::Bind(const std::string& host, int port) {
  const std::string text = AddressText(host, port);
  const absl::Status in_use = absl::UnavailableError(
      absl::StrCat("cannot listen on ", text,
                   ": the port is in use, or the address is not this host's"));
  absl::string_view name = host;
  if (absl::ConsumePrefix(&name, kAbstractSocket)) {
    sockaddr_storage address = {};
    const socklen_t size = SetName(address, name);
    return Bind(address, size) == 0 ? absl::OkStatus() : in_use;
  }
  if (name.size() > 2 && name.front() == '[') {
    name = name.substr(1, name.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int unresolved =
      getaddrinfo(std::string(name).c_str(), nullptr, &hints, &found);
  if (unresolved != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", text, ": ",
                                               gai_strerror(unresolved)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 freeaddrinfo);
  port_ = port;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    sockaddr_storage address = {};
    std::memcpy(&address, each->ai_addr, each->ai_addrlen);
    SetPort(address, port_);
    const int why = Bind(address, each->ai_addrlen);
    // Another job may listen on the port at other addresses, and ranks could
    // then join the wrong job.
    if (why == EADDRINUSE) return in_use;
    if (why == 0) port_ = PortOf(listeners_.back());
  }
  return listeners_.empty() ? in_use : absl::OkStatus();
}

Acceptor::~Acceptor() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    static_cast<void>(!write(end_, &one, sizeof one));
    thread_.join();
  }
  for (const int fd : listeners_) close(fd);
  for (const Waiting& waiting : waiting_) close(waiting.fd);
  if (end_ >= 0) close(end_);
}

void Acceptor::Run() {
  std::vector<pollfd> polled;
  while (true) {
    polled.assign(1, {.fd = end_, .events = POLLIN, .revents = 0});
    for (const Waiting& waiting : waiting_) {
      polled.push_back({.fd = waiting.fd, .events = POLLIN, .revents = 0});
    }
    const size_t num_waiting = waiting_.size();
    if (num_waiting < kMostWaiting) {
      for (const int fd : listeners_) {
        polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      }
    }
    const int pause = waiting_.empty() ? -1 : static_cast<int>(kLeastWaitMs);
    if (poll(polled.data(), polled.size(), pause) < 0 && errno != EINTR) {
      // No memory for poll.
      usleep(1000);
      continue;
    }
    if (polled[0].revents != 0) return;
    std::vector<Waiting> kept;
    for (size_t i = 0; i < num_waiting; ++i) {
      if (polled[1 + i].revents == 0 || Keeps(waiting_[i])) {
        kept.push_back(waiting_[i]);
      }
    }
    waiting_ = std::move(kept);
    for (size_t i = 1 + num_waiting; i < polled.size(); ++i) {
      if (polled[i].revents != 0) AcceptFrom(polled[i].fd);
    }
    CloseLate();
  }
}

void Acceptor::AcceptFrom(int listener) {
  while (waiting_.size() < kMostWaiting) {
    const int fd =
        accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Without file descriptors the connection waits in the system's queue.
      if (errno == EMFILE || errno == ENFILE) usleep(10000);
      return;
    }
    // Readable once the whole preface has come.
    SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(kPreface.size()));
    waiting_.push_back({.fd = fd, .since_ms = NowMs()});
  }
}

bool Acceptor::Keeps(const Waiting& waiting) {
  char begin[kPreface.size()];
  const ssize_t count = recv(waiting.fd, begin, sizeof begin, MSG_PEEK);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count != static_cast<ssize_t>(sizeof begin) ||
      std::string_view(begin, sizeof begin) != kPreface) {
    close(waiting.fd);
    return false;
  }
  SetOption(waiting.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
  take_(waiting.fd);
  return false;
}

void Acceptor::CloseLate() {
  const int64_t longest =
      waiting_.size() < kMostWaiting ? kLongestWaitMs : kLeastWaitMs;
  const int64_t now = NowMs();
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (now - waiting.since_ms < longest) return false;
    close(waiting.fd);
    return true;
  });
}

}  // namespace crosshatch::coordination
