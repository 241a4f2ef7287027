// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains a small model as train_lm does and compares the bytes that each rank
/// moved and copied with the formula of docs/communication.md, which prints the
/// part between [formula] and [/formula].

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/token_source.h"
#include "crosshatch/examples/train.h"
#include "crosshatch/examples/train_options.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/parts.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/verify/verify_step.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using examples::TrainOptions;

struct Case {
  std::string name;
  /// Ranks of replicate, fsdp and tp; 0 if the mesh lacks the axis.
  int replicate, fsdp, tp;
  int64_t batch, length;
  int64_t dim, layers, heads, kv_heads, ffn, vocab;
  DType dtype;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Calls and bytes, by "axes collective".
struct Count {
  int64_t calls = 0;
  int64_t bytes = 0;
};
using Counts = std::map<std::string, Count>;

// [formula]
// A tp rank's shard of a parameter. FSDP splits its rows.
struct Matrix {
  int64_t rows, columns;
};
using Group = std::vector<Matrix>;

struct Formula {
  // R, F and T: ranks of replicate, fsdp and tp; r, f and t: this rank's index.
  int64_t R, F, T, r, f, t;
  // Batch, positions, width, blocks, query and key heads, inner width,
  // vocabulary.
  int64_t B, L, D, N, H, K, M, V;
  // Bytes per element of the compute dtype. Master weights and gradients have
  // 4.
  int64_t e;
  std::string data_axes, all_axes;  // E.g. "fsdp" and "fsdp,tp".
  bool has_replicate, has_tp;

  // Returns whether key heads are replicated, on T / K neighbouring ranks whose
  // queries use no other.
  bool CopiesKeys() const { return K < T && T % K == 0 && H % T == 0; }
  // Returns whether ranks share the query heads of a key head without replicas:
  // there are fewer key heads than ranks, and no rank has a whole group of
  // heads.
  bool SharesKeys() const {
    return !CopiesKeys() && K < T && Part(H, T, 0) < H / K;
  }

  // Return this tp rank's parameters of a block and of the root: whole groups
  // of query heads with their key head, rows of the vocabulary.
  Group Block() const {
    const int64_t keys = (CopiesKeys() ? 1 : Part(K, T, t)) * (D / H);
    const int64_t queries =
        CopiesKeys() || SharesKeys() ? Part(H, T, t) * (D / H) : keys * (H / K);
    const int64_t inner = Part(M, T, t);
    return {{D, 1}, {queries, D}, {keys, D},  {keys, D}, {D, queries},
            {D, 1}, {inner, D},   {inner, D}, {D, inner}};
  }
  Group Root() const {
    const int64_t rows = Part(V, T, t);
    return {{rows, D}, {D, 1}, {rows, D}};
  }

  Counts Step() const {
    Counts counts;
    const auto add = [&](const std::string& axes, const char* collective,
                         int64_t calls, int64_t bytes) {
      if (calls == 0) return;
      Count& count = counts[axes + " " + collective];
      count.calls += calls;
      count.bytes += calls * bytes;
    };

    // FSDP gathers a block in forward and again in backward. The root stays
    // gathered in between.
    const auto shard = [&](const Group& group, int64_t calls, int64_t gathers) {
      int64_t full = 0;
      int64_t mine = 0;
      for (const Matrix& m : group) {
        full += m.rows * m.columns;
        mine += Part(m.rows, F, f) * m.columns;
      }
      add("fsdp", "all_gather", calls * gathers, (full - mine) * e);
      add("fsdp", "reduce_scatter", calls, (F - 1) * mine * 4);
      if (has_replicate) {
        add("replicate", "all_reduce", calls, AllReduced(mine, R, r) * 4);
      }
    };
    shard(Block(), N, 2);
    shard(Root(), 1, 1);

    // Tensor parallelism. Between blocks a rank has its positions of the
    // residual stream. It gathers all positions before attention, MLP and
    // output, and scatters sums after embedding, attention and MLP. In backward
    // each gather is a scatter and vice versa.
    const int64_t rows = Part(Part(B, R, r), F, f);
    if (has_tp) {
      const int64_t whole = rows * L * D;
      const int64_t mine = rows * Part(L, T, t) * D;
      const int64_t times = whole == 0 || T == 1 ? 0 : 2 * (2 * N + 1);
      add("tp", "all_gather", times, (whole - mine) * e);
      add("tp", "reduce_scatter", times, (T - 1) * mine * e);
      // Keys and values that ranks share are gathered in attention's forward
      // and backward. Their gradients are summed.
      if (SharesKeys() && rows > 0) {
        const int64_t of_head = rows * L * (D / H);
        add("tp", "all_gather", 4 * N, (K - Part(K, T, t)) * of_head * e);
        add("tp", "reduce_scatter", 2 * N,
            (T - 1) * Part(K, T, t) * of_head * e);
      }
      // For replicated key heads only the gradients of the weights are summed.
      if (CopiesKeys()) {
        const int64_t copies = T / K;
        add("tp_copy", "all_reduce", 2 * N,
            AllReduced(D / H * D, copies, t % copies) * e);
      }
      // The norms compute these positions only, so the gradients of their
      // weights are summed.
      add("tp", "all_reduce", T == 1 ? 0 : 2 * N + 1, AllReduced(D, T, t) * e);
      // Cross entropy of logits split by vocabulary: each row's maximum, then
      // its sum of exponentials and the target's logit.
      if (rows > 0) {
        add("tp", "all_reduce", 1, AllReduced(rows * L, T, t) * 4);
        add("tp", "all_reduce", 1, AllReduced(2 * rows * L, T, t) * 4);
      }
    }

    // The loss over the ranks that split the batch, one float64. Over all ranks
    // two: the norm, and whether replicas of gradients are finite.
    const int64_t data = r * F + f;
    add(data_axes, "all_reduce", 1, AllReduced(1, R * F, data) * 8);
    add(all_axes, "all_reduce", 1, AllReduced(2, R * F * T, data * T + t) * 8);
    return counts;
  }

  // Gathered parameters are aligned to 16 elements.
  int64_t GatheredBytes(const Group& group) const {
    int64_t elements = 0;
    for (const Matrix& m : group) {
      elements += (m.rows * m.columns + 15) / 16 * 16;
    }
    return elements * e;
  }
  // The root, the computing block and the prefetched one.
  int64_t PeakOfGathered() const {
    return GatheredBytes(Root()) +
           std::min<int64_t>(N, 2) * GatheredBytes(Block());
  }
};
// [/formula]

Formula FormulaOf(const Case& c, int rank) {
  Formula formula;
  formula.R = std::max(c.replicate, 1);
  formula.F = c.fsdp;
  formula.T = std::max(c.tp, 1);
  formula.t = rank % formula.T;
  formula.f = rank / formula.T % formula.F;
  formula.r = rank / formula.T / formula.F;
  formula.B = c.batch;
  formula.L = c.length;
  formula.D = c.dim;
  formula.N = c.layers;
  formula.H = c.heads;
  formula.K = c.kv_heads;
  formula.M = c.ffn;
  formula.V = c.vocab;
  formula.e = SizeOf(c.dtype);
  formula.has_replicate = c.replicate > 0;
  formula.has_tp = c.tp > 0;
  formula.data_axes = c.replicate > 0 ? "replicate,fsdp" : "fsdp";
  formula.all_axes = formula.data_axes + (c.tp > 0 ? ",tp" : "");
  return formula;
}

constexpr int kSteps = 3;

TrainOptions OptionsOf(const Case& c) {
  TrainOptions options;
  if (c.replicate > 0) options.mesh.push_back({"replicate", c.replicate});
  options.mesh.push_back({"fsdp", c.fsdp});
  if (c.tp > 0) options.mesh.push_back({"tp", c.tp});
  options.config = {.dim = c.dim,
                    .layers = c.layers,
                    .heads = c.heads,
                    .kv_heads = c.kv_heads,
                    .ffn = c.ffn,
                    .vocab = c.vocab};
  options.global_batch = c.batch;
  options.seq_len = c.length;
  options.steps = kSteps;
  options.lr = 1e-3;
  options.beta1 = 0.9;
  options.beta2 = 0.95;
  options.eps = 1e-8;
  options.clip_norm = 1;
  options.run.job.timeout = absl::Minutes(2);
  options.dtype = c.dtype;
  return options;
}

std::string Text(const Counts& counts) {
  return absl::StrJoin(counts, "\n", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, ": ", entry.second.calls, " calls, ",
                    entry.second.bytes, " bytes");
  });
}

// If the compute dtype differs from that of the master weights, each gather
// converts a copy of the shard.
int64_t CopiedToGather(const Formula& f) {
  if (f.e == 4) return 0;
  const auto shard = [&](const Group& group) {
    int64_t mine = 0;
    for (const Matrix& m : group) mine += Part(m.rows, f.F, f.f) * m.columns;
    return mine * f.e;
  };
  return 2 * f.N * shard(f.Block()) + shard(f.Root());
}

// If a rank's query heads belong to two groups, attention's backward runs once
// per group. The statistics of each are strided by row.
int64_t CopiedByAttention(const Formula& f) {
  if (!f.SharesKeys()) return 0;
  const int64_t group = f.H / f.K;
  const int64_t heads = Part(f.H, f.T, f.t);
  int64_t begin = 0;
  for (int64_t t = 0; t < f.t; ++t) begin += Part(f.H, f.T, t);
  const int64_t end = begin + heads;
  const bool in_parts = heads > 0 && begin / group != (end - 1) / group &&
                        (begin % group != 0 || end % group != 0);
  const int64_t rows = Part(Part(f.B, f.R, f.r), f.F, f.f);
  return in_parts && rows > 1 ? f.N * rows * heads * f.L * 4 : 0;
}

/// One rank's traffic in kSteps steps.
struct Measured {
  Counts counts;
  int64_t copied_bytes = 0;
  int64_t peak_of_gathered = 0;
};

Measured MeasuredOn(World& world) {
  Measured measured;
  for (const auto& [axes, by_kind] : examples::TotalTraffic(world)) {
    for (const auto& [kind, count] : by_kind) {
      measured.counts[absl::StrCat(axes, " ", kind)] = {count.calls,
                                                        count.bytes};
    }
  }
  measured.copied_bytes = world.context().copied_bytes();
  measured.peak_of_gathered =
      world.context().allocator().stats().peak[static_cast<size_t>(
          MemoryClass::kGatheredParameter)];
  return measured;
}

class BytesFormulaTest : public testing::TestWithParam<Case> {};

TEST_P(BytesFormulaTest, BytesOfEveryRankMatchTheFormula) {
  const Case& c = GetParam();
  const std::string path = testing::TempDir() + "/" + c.name + ".txt";
  std::ofstream(path) << "The quick brown fox jumps over the lazy dog.\n";
  const auto tokens = examples::TokenSource::FromText({path});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const TrainOptions options = OptionsOf(c);
  std::vector<Measured> measured(static_cast<size_t>(options.world_size()));
  const absl::Status status =
      StatusOfRanks(options.world_size(), [&](World& world) {
        absl::Status trained = examples::Train(world, options, *tokens);
        measured[static_cast<size_t>(world.rank())] = MeasuredOn(world);
        return trained;
      });
  ASSERT_TRUE(status.ok()) << status;

  for (int rank = 0; rank < options.world_size(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const Formula formula = FormulaOf(c, rank);
    Counts expected = formula.Step();
    for (auto& [what, count] : expected) {
      count.calls *= kSteps;
      count.bytes *= kSteps;
    }
    const Measured& actual = measured[static_cast<size_t>(rank)];
    EXPECT_EQ(Text(actual.counts), Text(expected));
    EXPECT_EQ(actual.copied_bytes,
              kSteps * (CopiedToGather(formula) + CopiedByAttention(formula)));
    EXPECT_EQ(actual.peak_of_gathered, formula.PeakOfGathered());
  }

  // So does the log of a dry run, which is verified.
  verify::VerifyOptions how;
  how.divisor = 1;  // The loss is divided.
  how.expected_bytes = [&](int rank, const std::string& name) {
    int64_t bytes = 0;
    for (const auto& [what, count] : FormulaOf(c, rank).Step()) {
      if (what.starts_with(name + " ")) bytes += kSteps * count.bytes;
    }
    return std::optional<int64_t>(bytes);
  };
  const auto report = verify::VerifyStep(
      [&](World& world) {
        return examples::TrainDry(world, options, *tokens, kSteps);
      },
      options.mesh, how);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->ok()) << report->ToString();
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, BytesFormulaTest,
    testing::Values(
        Case{"even_2x2", 0, 2, 2, 4, 8, 32, 3, 4, 4, 64, 128, kFloat32},
        Case{"even_2x2_bfloat16", 0, 2, 2, 4, 8, 32, 3, 4, 4, 64, 128,
             kBFloat16},
        Case{"uneven_3x2", 0, 3, 2, 5, 7, 18, 3, 3, 3, 25, 125, kFloat32},
        Case{"rank_without_rows_3x2", 0, 3, 2, 2, 7, 18, 2, 3, 3, 25, 125,
             kFloat32},
        Case{"rank_without_heads_2x3", 0, 2, 3, 3, 7, 24, 2, 4, 2, 25, 125,
             kFloat32},
        Case{"replicated_2x2x2", 2, 2, 2, 7, 5, 12, 2, 2, 1, 25, 125, kFloat32},
        Case{"shared_keys_2x4", 0, 2, 4, 3, 7, 24, 2, 6, 2, 25, 125, kFloat32},
        Case{"copied_keys_2x4", 0, 2, 4, 3, 7, 32, 2, 8, 2, 25, 125, kFloat32},
        Case{"fsdp_3", 0, 3, 0, 5, 7, 18, 3, 3, 3, 25, 125, kFloat32},
        Case{"tp_3", 0, 1, 3, 3, 7, 18, 1, 3, 3, 25, 125, kFloat32},
        Case{"one_rank", 0, 1, 0, 3, 7, 18, 2, 3, 3, 25, 125, kFloat32}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace crosshatch
