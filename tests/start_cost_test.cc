// SPDX-License-Identifier: Apache-2.0

/// \file
/// The control messages of a job before its first step and per step. They
/// depend on the mesh's axes, not on the number of parameters and ranks.
/// docs/scale.md relies on that.

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

/// Returns the counts of rank 1 of a mesh of fsdp x tp in `steps` steps, with
/// or without rows of documents.
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
  // The flags of a real run; only rank 0 prints.
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
    // All ranks compare the mesh, the text, the model and whether to stop.
    // Ranks of tensor parallelism compare ids and targets.
    EXPECT_EQ(counts.messages, 4 * (side * side - 1) + 2 * (side - 1));
    EXPECT_LE(counts.bytes, 1000 * counts.messages);
  }
}

TEST(StartCostTest, CountsTheExchangesOfEachStep) {
  // Comparisons of the text, the model, its inputs and the loss's targets; and
  // per step of whether to stop, except for the last.
  EXPECT_EQ(CountsOf(2, 2, 2, 1).exchanges, 5);
  const Counts two = CountsOf(2, 2, 2, 2);
  EXPECT_EQ(two.exchanges, 6);
  const Counts five = CountsOf(2, 2, 2, 5);
  EXPECT_EQ(five.exchanges, two.exchanges + 3);
  EXPECT_EQ(five.groups, two.groups);
}

// The first input of a mesh is compared at once, the others at the end of the
// first forward.
TEST(StartCostTest, RowsOfDocumentsTakeOneMore) {
  for (const int64_t layers : {1, 6}) {
    EXPECT_EQ(CountsOf(2, 2, layers, 1, /*documents=*/true).exchanges,
              CountsOf(2, 2, layers, 1).exchanges + 1)
        << layers;
  }
}

}  // namespace
}  // namespace crosshatch
