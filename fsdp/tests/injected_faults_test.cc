// SPDX-License-Identifier: Apache-2.0

/// \file
/// Lifetime bugs that users of other libraries reported, injected into streams
/// and leases. Each is detected within a thousand seeds.

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "crosshatch/fsdp/tests/adversarial_training_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

// Injects the fault at each place and expects its detection if it has an
// effect.
void ExpectFound(const std::string& what, const Reference& reference,
                 Fault::Kind kind, const std::vector<int64_t>& places) {
  int found = 0;
  for (const int64_t place : places) {
    const Verdict verdict = reference.Find({kind, place});
    if (!verdict.equivalent.empty()) continue;
    ++found;
    EXPECT_NE(verdict.seed, 0u) << what << " was not found at " << place;
    std::cout << what << ": seed " << verdict.seed
              << (verdict.overlap ? ", and leases overlap" : "") << "\n";
  }
  EXPECT_GT(found, 0) << what << " changes nothing anywhere";
}

// Enough blocks that a step reuses memory.
Scenario Deep(const std::string& name) {
  Scenario scenario = ScenarioOf(name);
  scenario.blocks = 4;
  return scenario;
}

TEST(InjectedFaultsTest, FindsKnownRacesOfOtherLibraries) {
  const Reference plain(Deep("plain"));
  const Reference hybrid(Deep("hsdp"));
  const auto leased = [](MemoryClass memory_class) {
    return [memory_class](const LoggedLease& lease) {
      return lease.memory_class == memory_class && lease.stream == "compute" &&
             lease.used_elsewhere;
    };
  };
  const std::vector<int64_t> gradients =
      plain.Leases(leased(MemoryClass::kGradient));

  // PyTorch #180665.
  ExpectFound("a reduced gradient freed before it is read", hybrid,
              Fault::Kind::kForgetUses,
              hybrid.Leases(leased(MemoryClass::kCommunication)));
  // Megatron-LM #6187.
  ExpectFound("a gradient leased on another stream than the one that writes",
              plain, Fault::Kind::kWrongStream, gradients);
  // Megatron-LM #5222.
  ExpectFound("a gradient overwritten while it is reduced", plain,
              Fault::Kind::kForgetUses, gradients);
  // ROCm/pytorch #3500: a stream is drained too early. So a reduction's input
  // is freed, or its result read, before it has run.
  ExpectFound("a gradient given back before it is reduced", plain,
              Fault::Kind::kReleaseEarly, gradients);
  ExpectFound("an update before the gradient is reduced", plain,
              Fault::Kind::kDropWait, plain.Waits([](const LoggedWait& wait) {
                return wait.stream == "compute" && !wait.for_memory &&
                       wait.waits_for == "fsdp_reduce_scatter";
              }));
}

// PyTorch #180665 concerns sums over replicas with offload. Here are the waits
// and leases that offload adds.
TEST(InjectedFaultsTest, FindsTheRacesOfCopiesToAndFromTheHost) {
  const Reference offload(Deep("hsdp_offload"));
  ExpectFound("a reduced gradient freed before the copy to the host", offload,
              Fault::Kind::kForgetUses,
              offload.Leases([](const LoggedLease& lease) {
                return lease.memory_class == MemoryClass::kCommunication &&
                       lease.stream == "compute" && lease.used_elsewhere;
              }));
  const auto drop = [&](const std::string& what, const std::string& stream,
                        const std::string& waits_for) {
    ExpectFound(what, offload, Fault::Kind::kDropWait,
                offload.Waits([&](const LoggedWait& wait) {
                  return wait.stream == stream && !wait.for_memory &&
                         wait.waits_for == waits_for;
                }));
  };
  drop("an update before the gradient is on the host", "compute",
       "fsdp_to_host");
  drop("a copy to the host before the sum over replicas", "fsdp_to_host",
       "fsdp_all_reduce");
  drop("a gather before the shard is on the device", "fsdp_all_gather",
       "fsdp_to_device");
  drop("a copy to the device before the update", "fsdp_to_device", "compute");
}

}  // namespace
}  // namespace crosshatch::fsdp
