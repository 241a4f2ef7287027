// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/speaker.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

/// The name of a socket that is no file (unix(7), "abstract").
struct SocketName {
  sockaddr_un address = {};
  socklen_t size = 0;
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

SocketName NameOf(const std::string& topic) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : topic) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  const std::string text =
      absl::StrCat("crosshatch/", getuid(), "/", absl::Hex(hash));
  SocketName name;
  name.address.sun_family = AF_UNIX;
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

int UnixSocket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

}  // namespace

bool SpeaksWithoutRank0(int rank, int first_elsewhere) {
  return rank == 1 || rank == first_elsewhere;
}

std::string NameOfParent() {
  struct stat numbers = {};
  stat("/proc/self/ns/pid", &numbers);
  return absl::StrCat("process ", getppid(), " of ", numbers.st_ino);
}

bool SpeaksFirst(const std::string& topic) {
  const SocketName name = NameOf(topic);
  const int held = UnixSocket();  // Until the process ends.
  if (held >= 0 && bind(held, name.get(), name.size) != 0) {
    const bool is_taken = errno == EADDRINUSE;
    close(held);
    // Whatever else may be wrong, an error that nobody prints is worse.
    return !is_taken;
  }
  if (held >= 0) listen(held, SOMAXCONN);
  return true;
}

bool IsSpokenOf(const std::string& topic) {
  const SocketName name = NameOf(topic);
  const int asking = UnixSocket();
  if (asking < 0) return false;
  // It is also there where so many ask that it takes no more of them.
  const bool is_there =
      connect(asking, name.get(), name.size) == 0 || errno == EAGAIN;
  close(asking);
  return is_there;
}

}  // namespace crosshatch
