// SPDX-License-Identifier: Apache-2.0

/// \file
/// The main of a test that runs on ranks: GoogleTest's, with the flags of
/// engine.h.

#include <iostream>
#include <map>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(std::string, test_engine, "local",
          "The engine that joins the ranks: local, mpi or nccl.");
ABSL_FLAG(std::string, test_device, "cpu",
          "The devices that the ranks compute on: cpu or cuda.");
ABSL_FLAG(int, test_skips, 0, "The number of cases that skip themselves.");

namespace crosshatch {
namespace {

bool Select(const std::string& engine, const std::string& device) {
  static const std::map<std::string, TestEngine> engines = {
      {"local", TestEngine::kLocal},
      {"mpi", TestEngine::kMpi},
      {"nccl", TestEngine::kNccl}};
  static const std::map<std::string, Device::Kind> devices = {
      {"cpu", Device::Kind::kCpu}, {"cuda", Device::Kind::kCuda}};
  const auto e = engines.find(engine);
  const auto d = devices.find(device);
  if (e == engines.end() || d == devices.end() ||
      !HasRunner(e->second, d->second)) {
    return false;
  }
  RunOn(e->second, d->second);
  return true;
}

// Returns whether a run of all cases skips as many as expected.
bool SkipsAsExpected(const ::testing::UnitTest& tests, int expected) {
  if (tests.skipped_test_count() == expected) return true;
  std::cerr << tests.skipped_test_count() << " cases were skipped, and "
            << "`skips` of the ch_rank_test is " << expected << "\n";
  return false;
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  const std::string engine = absl::GetFlag(FLAGS_test_engine);
  const std::string device = absl::GetFlag(FLAGS_test_device);
  if (!crosshatch::Select(engine, device)) {
    std::cerr << "there is no --test_engine=" << engine
              << " --test_device=" << device << " in this test\n";
    return 2;
  }
  if (device != "cpu") {
    // A forked process has no threads for streams.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  const bool all = GTEST_FLAG_GET(filter) == "*";
  if (all && engine == "mpi") GTEST_FLAG_SET(filter, "-*DeathTest*");
  const int failed = RUN_ALL_TESTS();
  const bool skips_as_expected =
      !all || crosshatch::SkipsAsExpected(*::testing::UnitTest::GetInstance(),
                                          absl::GetFlag(FLAGS_test_skips));
  return failed != 0 || !skips_as_expected ? 1 : 0;
}
