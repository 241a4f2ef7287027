// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::coordination {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kMostReceivedAtOnce = size_t{64} << 10;

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  in_port_t& port() {
    return storage.ss_family == AF_INET6
               ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
               : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  }
  bool operator==(const Address& other) const {
    return size == other.size && std::memcmp(get(), other.get(), size) == 0;
  }
};

/// Appends the addresses of one host, with `port`. Returns 0 or the error of
/// getaddrinfo.
int Resolve(absl::string_view name, int port, std::vector<Address>& addresses) {
  std::string host(name);
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return failed;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    address.port() = htons(static_cast<uint16_t>(port));
  }
  freeaddrinfo(found);
  return 0;
}

File OpenSocket(const Address& address) {
  return File(socket(address.storage.ss_family,
                     SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void SetOption(const File& socket, int level, int option) {
  const int one = 1;
  setsockopt(socket.fd(), level, option, &one, sizeof one);
}

/// Listens on one address, whose port it sets. Returns 0 or the error's number.
int ListenOn(Address& address, File& socket) {
  socket = OpenSocket(address);
  if (socket.fd() < 0) return errno;
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR);
  if (address.storage.ss_family == AF_INET6) {
    SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY);
  }
  if (bind(socket.fd(), address.get(), address.size) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0) {
    return errno;
  }
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address.storage),
              &address.size);
  return 0;
}

/// Returns whether the connection is established until `deadline`.
bool Connects(const File& socket, const Address& address, absl::Time deadline) {
  if (socket.fd() < 0) return false;
  if (connect(socket.fd(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) return false;
    pollfd change = {.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    poll(&change, 1, static_cast<int>(std::clamp<int64_t>(ms, 0, 60000)));
  }
  // If nobody listens on a port that the system assigns to clients, the socket
  // may get this port, and is then connected to itself.
  Address self;
  Address peer;
  self.size = peer.size = sizeof self.storage;
  return getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&peer.storage),
                     &peer.size) == 0 &&
         getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&self.storage),
                     &self.size) == 0 &&
         std::memcmp(&self, &peer, sizeof self) != 0;
}

}  // namespace

File::~File() {
  if (fd_ >= 0) close(fd_);
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Connection::Connection(File socket, size_t most)
    : socket_(std::move(socket)), most_(most) {
  SetOption(socket_, IPPROTO_TCP, TCP_NODELAY);
}

Frame MakeFrame(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  auto frame = std::make_shared<std::string>();
  frame->reserve(kLengthBytes + size);
  for (size_t i = 0; i < kLengthBytes; ++i) {
    const size_t shift = 8 * (kLengthBytes - 1 - i);
    *frame += static_cast<char>((size >> shift) & 0xff);
  }
  message.AppendToString(frame.get());
  return frame;
}

void Connection::Send(Frame frame) {
  queued_.push_back(std::move(frame));
  Flush();
}

void Connection::Flush() {
  while (!queued_.empty()) {
    const std::string& first = *queued_.front();
    const ssize_t count = send(fd(), first.data() + num_sent_,
                               first.size() - num_sent_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    // Receive notices that the connection has ended.
    if (count < 0) break;
    num_sent_ += static_cast<size_t>(count);
    if (num_sent_ < first.size()) continue;
    queued_.pop_front();
    num_sent_ = 0;
  }
}

bool Connection::Receive(absl::FunctionRef<bool(absl::string_view)> take) {
  char buffer[1 << 14];
  has_more_ = false;
  for (size_t all = 0; all < kMostReceivedAtOnce;) {
    const ssize_t count = recv(fd(), buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    received_.append(buffer, static_cast<size_t>(count));
    all += static_cast<size_t>(count);
    size_t begin = 0;
    bool goes_on = true;
    while (goes_on && received_.size() - begin >= kLengthBytes) {
      size_t length = 0;
      for (size_t i = 0; i < kLengthBytes; ++i) {
        length = length << 8 | static_cast<unsigned char>(received_[begin + i]);
      }
      if (length > most_) return false;
      if (received_.size() - begin < kLengthBytes + length) break;
      goes_on = take(
          absl::string_view(received_).substr(begin + kLengthBytes, length));
      begin += kLengthBytes + length;
    }
    received_.erase(0, begin);
    if (!goes_on) break;
  }
  has_more_ = true;
  return true;
}

std::string Connection::PeerHost() const {
  Address peer;
  peer.size = sizeof peer.storage;
  char text[NI_MAXHOST] = "";
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&peer.storage),
                  &peer.size) != 0 ||
      getnameinfo(peer.get(), peer.size, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  return text;
}

absl::StatusOr<std::vector<File>> Listen(const std::string& host, int& port) {
  const auto error = [&](absl::StatusCode code, absl::string_view why) {
    return absl::Status(
        code, absl::StrCat("cannot listen on ", host, ":", port, ": ", why));
  };
  std::vector<File> listeners;
  std::vector<Address> taken;
  for (const absl::string_view name : absl::StrSplit(host, ',')) {
    std::vector<Address> addresses;
    const int unresolved = Resolve(name, port, addresses);
    if (unresolved != 0) {
      return error(absl::StatusCode::kUnavailable, gai_strerror(unresolved));
    }
    bool listens = false;
    int failed = 0;
    for (Address& address : addresses) {
      address.port() = htons(static_cast<uint16_t>(port));
      if (std::find(taken.begin(), taken.end(), address) != taken.end()) {
        listens = true;
        continue;
      }
      File socket;
      failed = ListenOn(address, socket);
      // Another job may listen on the port at other addresses, and ranks could
      // then join the wrong job.
      if (failed == EADDRINUSE) {
        return error(absl::StatusCode::kUnavailable, "the port is in use");
      }
      if (failed == EMFILE || failed == ENFILE) {
        return error(absl::StatusCode::kResourceExhausted,
                     std::strerror(failed));
      }
      // The host may lack a family of addresses.
      if (failed != 0) continue;
      port = ntohs(address.port());
      listeners.push_back(std::move(socket));
      taken.push_back(address);
      listens = true;
    }
    // On another host than the one meant, an address that many hosts have, such
    // as a bridge's, would be listened on in vain.
    if (!listens) {
      return error(absl::StatusCode::kUnavailable,
                   failed == EADDRNOTAVAIL
                       ? absl::StrCat(name, " is not this host's")
                       : std::strerror(failed));
    }
  }
  return listeners;
}

absl::StatusOr<File> Dial(const std::string& host, int port,
                          absl::Time deadline) {
  absl::Duration pause = absl::Milliseconds(20);
  while (true) {
    std::vector<Address> addresses;
    int failed = 0;
    for (const absl::string_view name : absl::StrSplit(host, ',')) {
      const int error = Resolve(name, port, addresses);
      if (error != 0) failed = error;
    }
    for (const Address& address : addresses) {
      File socket = OpenSocket(address);
      // A host that is down does not answer, and its other addresses may.
      const absl::Time until =
          std::min(deadline, absl::Now() + absl::Seconds(5));
      if (!Connects(socket, address, until)) continue;
      return socket;
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no process listened on ", host, ":", port,
          addresses.empty() ? absl::StrCat(" (", gai_strerror(failed), ")")
                            : ""));
    }
    absl::SleepFor(std::min(pause, deadline - absl::Now()));
    pause = std::min(2 * pause, absl::Milliseconds(500));
  }
}

}  // namespace crosshatch::coordination
