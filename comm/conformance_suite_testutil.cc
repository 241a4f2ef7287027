// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_suite_testutil.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace internal {
namespace {

class ConformanceTest : public testing::Test {
 public:
  explicit ConformanceTest(std::function<void()> test)
      : test_(std::move(test)) {}
  void TestBody() override { test_(); }

 private:
  const std::function<void()> test_;
};

}  // namespace

absl::Status ConformanceRank::Run(const CollectiveCase& c) const {
  CollectiveRun run = Prepare(c);
  CH_RETURN_IF_ERROR(run.Issue(stream()));
  CH_RETURN_IF_ERROR(context().Synchronize());
  return run.Check();
}

int NumCounts(CollectiveKind kind, int n) {
  if (kind == CollectiveKind::kAllToAll) return n * n;
  const bool is_one =
      kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast;
  return is_one ? 1 : n;
}

absl::Status RunRanks(const ConformanceEngine& engine, int ranks,
                      const Body& body, const JobOptions& options) {
  return engine.run(
      ranks,
      [&](World& world) {
        ConformanceRank rank(engine, world);
        return body(rank);
      },
      options);
}

void Register(const EnginePtr& engine, const std::string& name, int ranks,
              std::function<void()> test) {
  testing::RegisterTest(absl::StrCat(engine->name, "Conformance").c_str(),
                        absl::StrCat(name, "/", ranks).c_str(), nullptr,
                        nullptr, __FILE__, __LINE__,
                        [test = std::move(test)]() -> ConformanceTest* {
                          return new ConformanceTest(test);
                        });
}

void RegisterJob(const EnginePtr& engine, const std::string& name, int ranks,
                 Body body, const JobOptions& options) {
  Register(engine, name, ranks, [=] {
    const absl::Status status = RunRanks(*engine, ranks, body, options);
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
}

EnginePtr Shared(ConformanceEngine engine) {
  if (!engine.copy) {
    engine.copy = [](void* to, const void* from, int64_t bytes) {
      if (bytes > 0) std::memcpy(to, from, bytes);
    };
  }
  return std::make_shared<const ConformanceEngine>(std::move(engine));
}

}  // namespace internal

bool RegisterDryRunConformanceTests(ConformanceEngine engine) {
  const internal::EnginePtr shared = internal::Shared(std::move(engine));
  for (const int ranks : shared->world_sizes) {
    internal::RegisterContract(shared, ranks);
  }
  return true;
}

bool RegisterAgreementConformanceTests(ConformanceEngine engine) {
  const internal::EnginePtr shared = internal::Shared(std::move(engine));
  for (const int ranks : shared->world_sizes) {
    internal::RegisterContract(shared, ranks);
    internal::RegisterFailures(shared, ranks);
  }
  return true;
}

bool RegisterCommunicatorConformanceTests(const ConformanceEngine& engine) {
  return RegisterAgreementConformanceTests(engine) &&
         RegisterMovementConformanceTests(engine);
}

}  // namespace crosshatch
