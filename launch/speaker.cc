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
#include "crosshatch/base/byte_hash.h"

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

/// Whether the name is had by a process of this user.
enum class Holder : uint8_t { kNobody, kThisUser, kAnother };

/// Another user may have a name by chance or by malice: then all processes of
/// this one take the next.
constexpr int kMostNames = 8;

SocketName NameOf(const std::string& topic, int number) {
  const uint64_t hash =
      HashBytes(1, topic.data(), static_cast<int64_t>(topic.size()));
  const std::string text =
      absl::StrCat("crosshatch/", getuid(), "/", absl::Hex(hash), "/", number);
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

Holder HolderOf(const SocketName& name) {
  const int asking = UnixSocket();
  if (asking < 0) return Holder::kNobody;
  Holder holder = Holder::kNobody;
  if (connect(asking, name.get(), name.size) == 0) {
    // Of the listener.
    ucred peer = {};
    socklen_t size = sizeof peer;
    const bool is_known =
        getsockopt(asking, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    holder = is_known && peer.uid == geteuid() ? Holder::kThisUser
                                               : Holder::kAnother;
  } else if (errno == EAGAIN) {
    // So many ask that it takes no more of them.
    holder = Holder::kThisUser;
  }
  close(asking);
  return holder;
}

}  // namespace

std::string NameOfParent() {
  struct stat numbers = {};
  stat("/proc/self/ns/pid", &numbers);
  return absl::StrCat("process ", getppid(), " of ", numbers.st_ino);
}

bool SpeaksFirst(const std::string& topic) {
  for (int number = 0; number < kMostNames; ++number) {
    const SocketName name = NameOf(topic, number);
    const int held = UnixSocket();  // Until the process ends.
    if (held < 0) break;
    if (bind(held, name.get(), name.size) == 0) {
      listen(held, SOMAXCONN);
      return true;
    }
    const bool is_taken = errno == EADDRINUSE;
    close(held);
    if (!is_taken) break;
    if (HolderOf(name) != Holder::kAnother) return false;
  }
  // Whatever else may be wrong, an error that nobody prints is worse.
  return true;
}

bool IsSpokenOf(const std::string& topic) {
  for (int number = 0; number < kMostNames; ++number) {
    const Holder holder = HolderOf(NameOf(topic, number));
    if (holder != Holder::kAnother) return holder == Holder::kThisUser;
  }
  return false;
}

}  // namespace crosshatch
