// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/join_session.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::internal {
namespace {

/// $1 is the directory, $2 whether to serve. A signal to the whole group of
/// processes (Ctrl-C) ends the server, and this when the process is gone. MPI's
/// daemon of that process, which has the directory in its environment, ends by
/// itself, or is ended two seconds later. Nobody who reads what the process
/// prints waits for this. What it removes with is there whatever the PATH is,
/// and it ends the server also where somebody has removed the files, as what
/// lies in /tmp for days is.
constexpr char kScript[] = R"sh(
trap '' INT TERM HUP
exec >/dev/null 2>&1
if [ "$2" = serve ]; then
  if command -v ompi-server >/dev/null 2>&1; then
    {
      OMPI_MCA_orte_tmpdir_base=$1 OMPI_MCA_plm=isolated \
        ompi-server --no-daemonize -r "$1/uri" >"$1/output" 2>&1 </dev/null &
      echo $! >"$1/pid"
      wait
      echo ended >"$1/ended"
    } 2>/dev/null &
  else
    echo missing >"$1/ended"
  fi
fi
PATH=$PATH:/usr/bin:/bin
server=
if [ "$2" = serve ]; then
  until [ -s "$1/pid" ] || [ -s "$1/ended" ] || [ ! -d "$1" ]; do
    sleep 0.01
  done
  [ ! -s "$1/pid" ] || server=$(cat "$1/pid")
fi
read -r nothing
if [ -n "$server" ] &&
  grep -qsaF "OMPI_MCA_orte_tmpdir_base=$1" "/proc/$server/environ"; then
  kill -9 "$server"
  wait
fi
for try in 1 2 3 4 5 6 7 8 9 10 last; do
  left=
  for environ in /proc/[0-9]*/environ; do
    if grep -qsaF "OMPI_MCA_orte_tmpdir_base=$1" "$environ"; then
      environ=${environ%/environ}
      left="$left ${environ#/proc/}"
    fi
  done
  [ -n "$left" ] || break
  [ $try != last ] || kill -9 $left
  sleep 0.2
done
rm -rf "$1"
)sh";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The names of sockets hold 107 bytes, and Open MPI adds some 50.
std::string DirectoryForSockets() {
  const char* const chosen = std::getenv("TMPDIR");
  if (chosen == nullptr || chosen[0] != '/' || std::strlen(chosen) > 30) {
    return "/tmp";
  }
  return chosen;
}

absl::Status SystemError(const std::string& what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

}  // namespace

JoinSession::JoinSession(int life, std::string directory)
    : life_(life), directory_(std::move(directory)) {}

JoinSession::JoinSession(JoinSession&& other) noexcept
    : life_(std::exchange(other.life_, -1)),
      directory_(std::move(other.directory_)),
      uri_(std::move(other.uri_)) {}

JoinSession::~JoinSession() {
  // What is left is the shell's to end: MPI's daemon waits for the end of this
  // process.
  if (life_ >= 0) close(life_);
}

absl::StatusOr<JoinSession> JoinSession::Start(bool serve,
                                               absl::Duration timeout) {
  std::string directory = DirectoryForSockets() + "/crosshatch-mpi-XXXXXX";
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("make a pipe");
  const auto fail = [&ends](const std::string& what) {
    const absl::Status error = SystemError(what);
    close(ends[0]);
    close(ends[1]);
    return error;
  };
  if (mkdtemp(directory.data()) == nullptr) {
    return fail(absl::StrCat("make the directory ", directory));
  }
  const pid_t child = fork();
  if (child < 0) {
    const absl::Status error = fail("start a shell");
    rmdir(directory.c_str());
    return error;
  }
  if (child == 0) {
    // Only what is safe after a fork of a process with threads.
    dup2(ends[0], STDIN_FILENO);
    execl("/bin/sh", "sh", "-c", kScript, "sh", directory.c_str(),
          serve ? "serve" : "", nullptr);
    _exit(127);
  }
  close(ends[0]);
  JoinSession session(ends[1], directory);
  const absl::Time deadline = absl::Now() + timeout;
  while (serve) {
    session.uri_ = ReadFile(directory + "/uri");
    if (!session.uri_.empty() && session.uri_.back() == '\n') {
      session.uri_.pop_back();
      break;
    }
    const std::string ended = ReadFile(directory + "/ended");
    if (ended.starts_with("missing")) {
      return absl::NotFoundError(
          "ompi-server is not in the PATH; it comes with Open MPI's programs "
          "(Debian: openmpi-bin), or start the job with mpirun");
    }
    if (!ended.empty() || absl::Now() > deadline) {
      return absl::UnavailableError(absl::StrCat(
          "ompi-server ",
          ended.empty() ? absl::StrCat("did not start within ",
                                       absl::FormatDuration(timeout))
                        : "ended at once",
          ": ", ReadFile(directory + "/output")));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return session;
}

}  // namespace crosshatch::internal
