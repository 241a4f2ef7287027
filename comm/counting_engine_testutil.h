// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COUNTING_ENGINE_TESTUTIL_H_
#define CROSSHATCH_COMM_COUNTING_ENGINE_TESTUTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/engine.h"

namespace crosshatch {

/// An engine that counts what a rank asks of the one behind it.
class CountingEngine final : public Engine {
 public:
  struct Counts {
    int groups = 0;
    int exchanges = 0;
    /// Of those exchanges, where each member writes to each other.
    int64_t messages = 0;
    int64_t bytes = 0;
  };

  /// \param inner, counts outlive this and its transports.
  CountingEngine(Engine& inner, Counts& counts)
      : inner_(inner), counts_(counts) {}

  const std::string& name() const override { return inner_.name(); }
  absl::Status Divide(
      const std::vector<int>& world_ranks,
      const std::vector<std::vector<int>>& groups,
      absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string)>
          exchange) override {
    return inner_.Divide(world_ranks, groups, exchange);
  }
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const GroupKey& key,
                                                     int member) override;
  void FailJob(const absl::Status& error) override { inner_.FailJob(error); }

 private:
  Engine& inner_;
  Counts& counts_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_COUNTING_ENGINE_TESTUTIL_H_
