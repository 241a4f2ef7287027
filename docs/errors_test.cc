// SPDX-License-Identifier: Apache-2.0

/// \file
/// Reproduces the errors that docs/errors.md prints (its blocks named `error`)
/// on two ranks of a mesh axis and compares the texts.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/base/process_scopes_testutil.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/docs/page_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::docs {
namespace {

// Runs two ranks and returns the error. Each rank calls `work` with the
// communicator of the axis "fsdp" and waits for what it has issued.
std::string ErrorOf(
    absl::FunctionRef<absl::Status(Communicator&, Stream&)> work) {
  const absl::Status status = StatusOfRanks(2, [&](World& world) {
    RankContext& context = world.context();
    Stream& stream = context.compute_stream();
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"fsdp", 2}}));
    CH_ASSIGN_OR_RETURN(Communicator * fsdp,
                        mesh.communicator(0, stream.name()));
    CH_RETURN_IF_ERROR(work(*fsdp, stream));
    return context.Synchronize();
  });
  return status.ToString() + "\n";
}

TEST(ErrorsPageTest, TheTextsAreThoseOfThePage) {
  // On adversarial streams the stream waits and not the host, as the text says.
  constexpr char kSeed[] = "CROSSHATCH_ADVERSARIAL_SEED";
  const KeptVariable kept(kSeed);
  unsetenv(kSeed);
  const std::vector<Fence> fences = FencesOf("docs/errors.md", "error");
  ASSERT_EQ(fences.size(), 2u);

  EXPECT_EQ(ErrorOf([](Communicator& fsdp, Stream& stream) {
              std::vector<float> send(8);
              std::vector<float> recv(8);
              if (fsdp.rank() == 0) {
                return AllGather(fsdp, send.data(), recv.data(), 4, kFloat32,
                                 stream, "layers.0");
              }
              return ReduceScatter(fsdp, send.data(), recv.data(), 4, kFloat32,
                                   ReduceOp::kSum, stream, "layers.1");
            }),
            fences[0].Text())
      << fences[0].where;

  EXPECT_EQ(ErrorOf([](Communicator& fsdp, Stream& stream) {
              float loss = 1;
              if (fsdp.rank() == 1) return absl::OkStatus();
              return AllReduce(fsdp, &loss, 1, kFloat32, ReduceOp::kSum, stream,
                               "loss");
            }),
            fences[1].Text())
      << fences[1].where;
}

}  // namespace
}  // namespace crosshatch::docs
