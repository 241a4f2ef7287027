// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/hung_launcher.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/launch/speaker.h"

namespace crosshatch {
namespace {

/// $1 is mpirun, $2 its directory, $3 the job as file names have it. A process
/// that has the number of one that is gone began at another time.
constexpr char kScript[] = R"sh(
trap '' INT TERM HUP
mpirun=$1 directory=$2 job=$3
began_at() { cut -d' ' -f22 "/proc/$mpirun/stat"; }
has_living_process() {
  for stat in /proc/[0-9]*/stat; do
    read -r line <"$stat" || continue
    # The state and the parent, after the name, which may have anything.
    set -- ${line##*) }
    [ "$2" != "$mpirun" ] || [ "$1" = Z ] || return 0
  done
  return 1
}
# By Ctrl-Z or a debugger: it goes on when it is told to.
is_stopped() { [ "$(cut -d' ' -f3 "/proc/$mpirun/stat" | tr t T)" = T ]; }
# mpirun is told of segments, but not of windows: one stays whose process was
# killed before all had it.
remove_shared_memory() {
  rm -f /dev/shm/vader_segment.*."$job".* /dev/shm/osc_sm.*."$job".*
}
began=$(began_at)
alone=0
while [ -n "$began" ] && [ "$(began_at)" = "$began" ]; do
  if has_living_process; then
    alone=0
  elif ! is_stopped; then
    alone=$((alone + 1))
  fi
  if [ $alone -gt 20 ]; then
    kill -9 "$mpirun"
    rm -rf "$directory"
    remove_shared_memory
    rmdir "$(dirname "$directory")"
    exit
  fi
  sleep 0.5
done
# The next mpirun of this number would have a job of this number.
[ -n "$(began_at)" ] || remove_shared_memory
)sh";

bool IsMpirun(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/comm"));
  std::string name;
  std::getline(file, name);
  return name == "mpirun" || name == "mpiexec" || name == "orterun";
}

}  // namespace

void EndLauncherThatHangs(const std::string& directory,
                          const std::string& job) {
  const pid_t parent = getppid();
  uint32_t number = 0;
  // Nothing is removed that does not bear mpirun's number.
  if (!directory.ends_with(absl::StrCat("/pid.", parent)) ||
      !absl::SimpleAtoi(job, &number) || !IsMpirun(parent) ||
      !SpeaksFirst(absl::StrCat("the end of mpirun, ", NameOfParent()))) {
    return;
  }
  const std::string mpirun = absl::StrCat(parent);
  const std::string in_names = absl::StrCat(absl::Hex(number));
  if (fork() != 0) return;
  // Only what is safe after a fork of a process with threads. mpirun waits for
  // the end of what its processes print, and peers for that of connections.
  setsid();
  syscall(SYS_close_range, 0u, ~0u, 0u);
  for (int fd = 0; fd < 3; ++fd) open("/dev/null", O_RDWR);
  const char* const environment[] = {"PATH=/usr/bin:/bin", nullptr};
  execle("/bin/sh", "sh", "-c", kScript, "sh", mpirun.c_str(),
         directory.c_str(), in_names.c_str(), nullptr, environment);
  _exit(127);
}

}  // namespace crosshatch
