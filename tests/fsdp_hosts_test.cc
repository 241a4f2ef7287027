// SPDX-License-Identifier: Apache-2.0

/// \file
/// What FSDP on NCCL moves between hosts. A gather or a reduction of F bytes
/// over n ranks is a ring, in which each host receives (n - 1) / n * F. Sends
/// from each rank to each other one would give it that as often as it has
/// ranks.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/emulation/nccl.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kWidth = 4;
constexpr int64_t kRows = 128;

// Seven matrices and two vectors: the sum of layers of one input.
class Block final : public nn::Module {
 public:
  Block() {
    for (const char* name : {"q", "k", "v", "o", "gate", "up", "down"}) {
      const bool has_bias = layers_.size() < 2;
      layers_.push_back(&Make<nn::Linear>(
          name, {.in = kWidth, .out = kRows, .bias = has_bias}));
    }
  }
  static constexpr int64_t kElems = 7 * kRows * kWidth + 2 * kRows;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor sum = layers_[0]->Forward(inputs[0]);
    for (size_t i = 1; i < layers_.size(); ++i) {
      sum = sum + layers_[i]->Forward(inputs[0]);
    }
    return {sum};
  }

 private:
  std::vector<nn::Linear*> layers_;
};

struct Case {
  std::vector<MeshAxis> axes;
  /// Devices of a host. Ranks are distributed over 8 devices.
  int host;
  int64_t hosts;
  fsdp::FullyShardOptions options;
};

// Returns what a forward and a backward of a block move between hosts. The
// block is gathered for each, and its gradients are reduced once.
emulation::NcclCounts CountsOf(const Case& c) {
  emulation::SetNcclVersion(23004);
  emulation::SetNcclHosts(c.host);
  emulation::NcclCounts before;
  emulation::NcclCounts after;
  // Ranks share devices.
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/1);
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/1);
  int ranks = 1;
  for (const MeshAxis& axis : c.axes) ranks *= static_cast<int>(axis.size);
  const auto train = [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, c.axes));
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(Communicator * all, MeshCommunicator(mesh));
    Block block;
    if (mesh.ndim() == 2) {
      CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
      tp::ParallelPlan plan;
      for (const auto& [name, layer] : block.children()) {
        plan.emplace_back(name,
                          tp::ColwiseParallel({.use_local_output = true}));
      }
      CH_RETURN_IF_ERROR(tp::ParallelizeModule(block, tp, plan));
    }
    fsdp::FullyShardOptions options = c.options;
    options.reshard_after_forward = true;
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
    CH_RETURN_IF_ERROR(block.Materialize({.seed = 3}));
    const auto forward = [&] {
      return Sum(block.Call({Full({1, kWidth}, 1)})[0]);
    };
    // The first collective of a communicator creates it, before ranks know that
    // all of them cut memory alike.
    CH_RETURN_IF_ERROR(Backward(forward()));
    const Tensor loss = forward();
    CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
    CH_RETURN_IF_ERROR(all->Exchange("", "before").status());
    if (world.rank() == 0) before = emulation::CountsOfNccl();
    CH_RETURN_IF_ERROR(all->Exchange("", "counted").status());
    CH_RETURN_IF_ERROR(Backward(loss));
    const Tensor next = forward();
    CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
    CH_RETURN_IF_ERROR(all->Exchange("", "done").status());
    if (world.rank() == 0) after = emulation::CountsOfNccl();
    return all->Exchange("", "counted again").status();
  };
  const absl::Status status =
      RunNccl(ranks, train, {.nccl = {.least_collective_bytes = 0}});
  EXPECT_TRUE(status.ok()) << status;
  emulation::SetNcclHosts(0);
  after.sends -= before.sends;
  after.collectives -= before.collectives;
  after.launches -= before.launches;
  after.bytes_between_hosts -= before.bytes_between_hosts;
  after.messages_between_hosts -= before.messages_between_hosts;
  return after;
}

// Two gathers and a reduction of `elems` over n ranks, in rings through all
// hosts.
int64_t LeastBytes(int64_t elems, int64_t n, int64_t hosts) {
  return 3 * hosts * elems * kFloat * (n - 1) / n;
}

void ExpectLeastBytes(const Case& c, int64_t groups, int64_t n) {
  const emulation::NcclCounts counts = CountsOf(c);
  const int64_t least = LeastBytes(Block::kElems, n, c.hosts);
  EXPECT_EQ(counts.sends, 0);
  EXPECT_GE(counts.bytes_between_hosts, least);
  EXPECT_LE(static_cast<double>(counts.bytes_between_hosts),
            1.05 * static_cast<double>(least));
  // Each collective of each of `groups` communicators.
  const int64_t collectives = counts.collectives / n / groups;
  EXPECT_EQ(collectives, c.options.ragged_shard.has_value() ? 3 : 3 * 9);
  EXPECT_EQ(counts.messages_between_hosts, collectives * groups * c.hosts);
  EXPECT_EQ(counts.launches, 3 * n * groups)
      << "one for each gather, reduction";
}

const std::vector<fsdp::FullyShardOptions>& Options() {
  static const std::vector<fsdp::FullyShardOptions> options = {
      {}, {.ragged_shard = fsdp::RaggedShard()}};
  return options;
}

TEST(FsdpHostsTest, OneHostOfEightMovesNothingBetweenHosts) {
  EXPECT_EQ(CountsOf({{{"fsdp", 8}}, 8, 1, {}}).bytes_between_hosts, 0);
}

// Two hosts of four ranks: two for each coordinate of tp.
TEST(FsdpHostsTest, FsdpTimesTensorParallelOnTwoHosts) {
  for (const fsdp::FullyShardOptions& options : Options()) {
    ExpectLeastBytes({{{"fsdp", 4}, {"tp", 2}}, 4, 2, options}, 2, 4);
  }
}

// 64 ranks on eight hosts.
TEST(FsdpHostsTest, SixtyFourRanksOnEightHosts) {
  for (const fsdp::FullyShardOptions& options : Options()) {
    ExpectLeastBytes({{{"fsdp", 64}}, 1, 8, options}, 1, 64);
  }
}

}  // namespace
}  // namespace crosshatch
