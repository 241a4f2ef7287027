// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/name_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::internal {
namespace {

/// What the child's exec failed with ends it with this status.
constexpr int kNoProgram = 127;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Of a temporary directory; sockets in it need a short name.
absl::StatusOr<std::string> MakeDirectory() {
  std::string path = "/tmp/crosshatch-mpi-XXXXXX";
  if (mkdtemp(path.data()) != nullptr) return path;
  return absl::UnavailableError(
      absl::StrCat("cannot make a directory ", path,
                   " for ompi-server: ", std::strerror(errno)));
}

}  // namespace

NameServer::NameServer(pid_t child, std::string directory)
    : child_(child), directory_(std::move(directory)) {}

NameServer::NameServer(NameServer&& other) noexcept
    : child_(std::exchange(other.child_, -1)),
      directory_(std::exchange(other.directory_, "")),
      uri_(std::move(other.uri_)) {}

NameServer::~NameServer() {
  if (child_ > 0) {
    kill(child_, SIGTERM);
    waitpid(child_, nullptr, 0);
  }
  std::error_code ignored;  // What is left is the system's to clean up.
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

absl::StatusOr<NameServer> NameServer::Start(absl::Duration timeout) {
  CH_ASSIGN_OR_RETURN(const std::string directory, MakeDirectory());
  // All memory that the child uses is made before the fork.
  const std::string report = directory + "/uri";
  const std::string output = directory + "/output";
  const std::string files = "OMPI_MCA_orte_tmpdir_base=" + directory;
  const char* const arguments[] = {"ompi-server", "--no-daemonize", "-r",
                                   report.c_str(), nullptr};
  std::vector<const char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(files.c_str());
  environment.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ompi-server: ", std::strerror(errno)));
  }
  if (child == 0) {
    // It ends with this process, however that ends.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execvpe("ompi-server", const_cast<char* const*>(arguments),
            const_cast<char* const*>(environment.data()));
    _exit(kNoProgram);
  }
  NameServer server(child, directory);
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    server.uri_ = ReadFile(report);
    if (!server.uri_.empty() && server.uri_.back() == '\n') {
      server.uri_.pop_back();
      return server;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) {
      server.child_ = -1;
      if (WIFEXITED(status) && WEXITSTATUS(status) == kNoProgram) {
        return absl::NotFoundError(
            "ompi-server is not in the PATH; it comes with Open MPI's programs "
            "(Debian: openmpi-bin), or start the job with mpirun");
      }
      return absl::UnavailableError(
          absl::StrCat("ompi-server ended at once: ", ReadFile(output)));
    }
    if (absl::Now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("ompi-server did not start within ",
                       absl::FormatDuration(timeout), ": ", ReadFile(output)));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace crosshatch::internal
