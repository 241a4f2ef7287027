// SPDX-License-Identifier: Apache-2.0
//
// What a job exchanges before its first step and in each: as much as the mesh
// has axes, whatever the number of parameters and ranks. docs/scale.md counts
// on it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/comm/counting_control_plane_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_options.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using examples::TokenSource;
using examples::TrainOptions;

using Counts = CountingControlPlane::Counts;

/// What rank 1 of a mesh of fsdp x tp does in `steps` steps, of rows of
/// documents or not.
Counts CountsOf(int fsdp, int tp, int64_t layers, int64_t steps,
                bool documents = false) {
  TrainOptions options;
  options.mesh = {{"fsdp", fsdp}, {"tp", tp}};
  options.config = {.dim = 64,
                    .layers = layers,
                    .heads = 8,
                    .kv_heads = 8,
                    .ffn = 64,
                    .vocab = 256};
  options.global_batch = fsdp;
  options.seq_len = 8;
  options.steps = steps;
  options.lr = 1e-3;
  // A real run's way through the program; only rank 0 prints.
  options.run.engine = EngineKind::kLocal;
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/text");
  std::ofstream(path) << "a text";
  auto tokens = TokenSource::FromText({path});
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  if (documents) {
    options.eos = ' ';
    tokens->EndDocumentsAt(' ');
  }
  Counts counts;
  const absl::Status status = RunFake(
      {.world_size = fsdp * tp, .rank = 1}, [&](World& world) -> absl::Status {
        CountingControlPlane control(world.control(), counts);
        World counted(control, world.planes(), world.context());
        return Train(counted, options, *tokens);
      });
  EXPECT_TRUE(status.ok()) << status;
  return counts;
}

TEST(StartCostTest, DoesNotGrowWithParametersOrRanks) {
  const Counts small = CountsOf(2, 2, 1, 2);
  const Counts deep = CountsOf(2, 2, 6, 2);
  EXPECT_EQ(deep.exchanges, small.exchanges);
  EXPECT_EQ(deep.groups, small.groups);
  std::printf("of two steps\n%6s %9s %8s %10s\n", "ranks", "exchanges",
              "messages", "bytes");
  for (const int64_t side : {2, 8, 32, 128}) {
    const Counts counts =
        CountsOf(static_cast<int>(side), static_cast<int>(side), 1, 2);
    std::printf("%6lld %9d %8lld %10lld\n", static_cast<long long>(side * side),
                counts.exchanges, static_cast<long long>(counts.messages),
                static_cast<long long>(counts.bytes));
    EXPECT_EQ(counts.exchanges, small.exchanges) << side << " x " << side;
    EXPECT_EQ(counts.groups, small.groups) << side << " x " << side;
    // The mesh, the text, the model and whether to stop are of all ranks; ids
    // and targets of those of tensor parallelism.
    EXPECT_EQ(counts.messages, 4 * (side * side - 1) + 2 * (side - 1));
    EXPECT_LE(counts.bytes, 1000 * counts.messages);
  }
}

TEST(StartCostTest, IsOneForTheMeshWhatRanksShareAndEachStepButTheLast) {
  // Of the text, the model, what it takes, and the targets of the loss, whether
  // ranks have the same; of the step, whether to stop, which the last one need
  // not know.
  EXPECT_EQ(CountsOf(2, 2, 2, 1).exchanges, 5);
  const Counts two = CountsOf(2, 2, 2, 2);
  EXPECT_EQ(two.exchanges, 6);
  const Counts five = CountsOf(2, 2, 2, 5);
  EXPECT_EQ(five.exchanges, two.exchanges + 3);
  EXPECT_EQ(five.groups, two.groups);
}

// Positions and keys of documents, which each layer takes, are compared at once
// with the ids.
TEST(StartCostTest, IsNoMoreForRowsOfDocuments) {
  for (const int64_t layers : {1, 6}) {
    EXPECT_EQ(CountsOf(2, 2, layers, 1, /*documents=*/true).exchanges,
              CountsOf(2, 2, layers, 1).exchanges)
        << layers;
  }
}

}  // namespace
}  // namespace crosshatch
