// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATION_TESTUTIL_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATION_TESTUTIL_H_

/// \file
/// A coordinator with its clients in one process, for tests.

#include <netinet/in.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/coordination_client.h"
#include "crosshatch/comm/coordination/coordination_server.h"
#include "crosshatch/comm/coordination/this_process.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {

inline constexpr char kHost[] = "127.0.0.1";
inline constexpr char kToken[] = "token";

/// Returns times that no busy machine exceeds.
inline CoordinationTimes Patient() {
  return {.start = absl::Seconds(60), .heartbeat = absl::Seconds(60)};
}

/// A server, and clients that each run on their own thread.
class Job {
 public:
  explicit Job(int size, CoordinationTimes times = Patient())
      : size_(size), times_(times) {
    auto server = CoordinationServer::Start(kHost, 0, ThisProcess(0, size),
                                            kToken, times);
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  int port() const { return server_->port(); }

  absl::StatusOr<std::unique_ptr<CoordinationClient>> Join(
      Member self, const std::string& token = kToken,
      ClientOptions options = {}) {
    options.times = times_;
    auto client =
        CoordinationClient::Connect(kHost, port(), self, token, options);
    if (!client.ok()) return client;
    if (absl::Status started = (*client)->AwaitStart(); !started.ok()) {
      return started;
    }
    return client;
  }

  std::vector<absl::Status> Run(
      std::vector<int> ranks,
      const std::function<absl::Status(CoordinationClient&, int)>& fn) {
    std::vector<absl::Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        auto client = Join(ThisProcess(ranks[i], size_));
        results[i] = client.ok() ? fn(**client, ranks[i]) : client.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  std::vector<absl::Status> RunAll(
      const std::function<absl::Status(CoordinationClient&, int)>& fn) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.push_back(rank);
    return Run(ranks, fn);
  }

 private:
  const int size_;
  const CoordinationTimes times_;
  std::unique_ptr<CoordinationServer> server_;
};

/// Returns the number of open file descriptors of this process.
inline int Files() {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    files += entry.is_symlink() ? 1 : 0;
  }
  return files;
}

/// Returns a message as it is sent.
inline std::string Framed(const std::string& bytes) {
  const auto length = htonl(static_cast<uint32_t>(bytes.size()));
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) +
         bytes;
}

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_TESTUTIL_H_
