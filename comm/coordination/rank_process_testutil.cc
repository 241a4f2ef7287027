// SPDX-License-Identifier: Apache-2.0

/// \file
/// A rank of a job without an engine, for coordination_faults_test.py:
///
///   rank_process RANK SIZE PORT HEARTBEAT_MS LEAVE_MS [FAULT]
///
/// It joins, prints "started" and waits for the job to fail. Then it prints the
/// failure to stderr and exits with 1. FAULT happens after the start: exit,
/// abort, error (reports one), goodbye (leaves at once), or hang (does not
/// leave when the job has failed).

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/coordination_client.h"
#include "crosshatch/comm/coordination/coordination_server.h"
#include "crosshatch/comm/coordination/this_process.h"

namespace crosshatch::coordination {
namespace {

constexpr char kHost[] = "127.0.0.1";
constexpr char kToken[] = "a job of tests";

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  if (argc < 6) return Fail(absl::InvalidArgumentError("too few arguments"));
  const int rank = std::atoi(argv[1]);
  const std::string fault = argc > 6 ? argv[6] : "";
  const CoordinationTimes times = {
      .start = absl::Seconds(60),
      .heartbeat = absl::Milliseconds(std::atoi(argv[4]))};
  const Member self = ThisProcess(rank, std::atoi(argv[2]));
  const int port = std::atoi(argv[3]);

  std::unique_ptr<CoordinationServer> server;
  if (rank == 0) {
    auto started = CoordinationServer::Start(kHost, port, self, kToken, times);
    if (!started.ok()) return Fail(started.status());
    server = *std::move(started);
  }
  auto client = CoordinationClient::Connect(
      kHost, port, self, kToken,
      {.times = times, .leave = absl::Milliseconds(std::atoi(argv[5]))});
  if (!client.ok()) return Fail(client.status());
  (*client)->SetActivity([rank] { return absl::StrCat("in step ", rank); });
  if (absl::Status status = (*client)->AwaitStart(); !status.ok()) {
    return Fail(status);
  }
  std::puts("started");
  std::fflush(stdout);
  if (fault == "exit") _exit(0);
  if (fault == "abort") std::abort();
  if (fault == "error") {
    (*client)->Report(
        {.world_ranks = {rank}, .error = absl::InternalError("bad")});
  }
  while (fault != "goodbye" && !(*client)->failure().has_value()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (fault == "hang") absl::SleepFor(absl::Hours(1));
  const absl::Status left = (*client)->Leave();
  return left.ok() ? 0 : Fail(left);
}

}  // namespace
}  // namespace crosshatch::coordination

int main(int argc, char** argv) {
  return crosshatch::coordination::Main(argc, argv);
}
