// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains a chain of blocks on rank threads and in dry runs. Compares the peak
/// of every memory class with the formula of docs/memory.md, which quotes the
/// part between [formula] and [/formula].

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/parts.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

constexpr int64_t kWidth = 5;
constexpr int64_t kOut = 7;
constexpr int kSteps = 2;

enum class Reshard { kAlways, kNever, kToTwo, kToThree };

int PostForwardMeshSize(Reshard reshard) {
  if (reshard == Reshard::kToTwo) return 2;
  return reshard == Reshard::kToThree ? 3 : 0;
}

struct Case {
  std::string name;
  std::vector<MeshAxis> axes;
  /// The inner width of each block.
  std::vector<int64_t> inner;
  int64_t rows;
  Reshard reshard;
  int prefetch;
  int reduce_buffers = 1;
  DType param_dtype = kFloat32;
  DType reduce_dtype = kFloat32;
  bool ragged = false;

  int ranks() const { return MeshAxes(axes).ranks(); }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// [formula]
struct Matrix {
  int64_t rows, columns;
};
using Group = std::vector<Matrix>;

struct Formula {
  // The root, then the blocks in forward order.
  std::vector<Group> groups;
  // Ranks of the fsdp axis; this rank's index; post_forward_mesh_size, where 0
  // means that groups are freed.
  int64_t F, f, k;
  bool reshard;         // After forward.
  int64_t p;            // Groups to prefetch.
  int64_t b;            // reduction.buffers.
  int64_t e_p, e_r;     // Size in bytes of param_dtype, reduce_dtype.
  bool cast_p, cast_r;  // Whether these differ from float32.
  // The model: rows of the batch, width, output width, inner width of each
  // block.
  int64_t R, D, O;
  std::vector<int64_t> H;

  int64_t blocks() const { return static_cast<int64_t>(groups.size()) - 1; }

  // Elements of group g: unsharded, with parameters aligned to 16 elements, and
  // the shard of rank i of n.
  int64_t Whole(int64_t g) const {
    int64_t elements = 0;
    for (const Matrix& m : groups[static_cast<size_t>(g)]) {
      elements += (m.rows * m.columns + 15) / 16 * 16;
    }
    return elements;
  }
  int64_t Shard(int64_t g) const { return Shard(g, 1); }
  // This rank's shard if each `within` neighbours hold the whole group.
  int64_t Shard(int64_t g, int64_t within) const {
    int64_t elements = 0;
    for (const Matrix& m : groups[static_cast<size_t>(g)]) {
      const int64_t parts = within == 1 ? 1 : F / within;
      const int64_t first = within == 1 ? f : f % within * parts;
      for (int64_t i = first; i < first + parts; ++i) {
        elements += Part(m.rows, F, i) * m.columns;
      }
    }
    return elements;
  }

  // Bytes gathered, and kept between forward and backward, of groups i to j.
  int64_t G(int64_t i, int64_t j) const {
    int64_t bytes = 0;
    for (int64_t g = i; g <= j; ++g) bytes += Whole(g) * e_p;
    return bytes;
  }
  int64_t K(int64_t i, int64_t j) const {
    int64_t bytes = 0;
    for (int64_t g = i; k > 0 && g <= j; ++g) bytes += Shard(g, k) * e_p;
    return bytes;
  }

  int64_t Parameter() const {
    int64_t bytes = 0;
    for (int64_t g = 0; g <= blocks(); ++g) bytes += Shard(g) * 4;
    return bytes;
  }

  // Two moments per element.
  int64_t OptimizerState() const { return 2 * Parameter(); }

  int64_t GatheredParameter() const {
    const int64_t N = blocks();
    if (!reshard) return G(0, N);
    // Forward: the root, a block, the prefetched blocks, and the kept shards of
    // the blocks so far.
    int64_t peak = G(0, std::min(p, N));
    for (int64_t i = 1; i <= N; ++i) {
      peak = std::max(peak, G(0, 0) + G(i, std::min(i + p, N)) + K(1, i));
    }
    // The end of the root's forward and the start of its backward.
    peak = std::max(peak, G(0, 0) + K(0, N));
    for (int64_t j = std::max<int64_t>(N - p + 1, 1); j <= N; ++j) {
      peak = std::max(peak, G(0, 0) + G(j, N) + K(1, j));
    }
    // Backward: a block, the prefetched blocks before it, and the kept shards
    // of the others.
    for (int64_t i = 1; i <= N; ++i) {
      for (int64_t j = std::max<int64_t>(i - p, 1); j <= i; ++j) {
        peak = std::max(peak, G(j, i) + K(1, j));
      }
    }
    return peak;
  }

  // Backward reduces the root, then the blocks from the last to the first. A
  // group's unsharded gradients are held for its own reduction and those of the
  // next b groups. Its sharded gradients stay.
  int64_t Gradient() const {
    std::vector<int64_t> order = {0};
    for (int64_t g = blocks(); g > 0; --g) order.push_back(g);
    int64_t peak = 0;
    int64_t sharded = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      sharded += Shard(order[i]) * 4;
      int64_t whole = 0;
      for (size_t j = i; j + static_cast<size_t>(b) >= i; --j) {
        whole += Whole(order[j]) * e_r;
        if (j == 0) break;
      }
      peak = std::max(peak, whole + sharded);
    }
    return peak;
  }

  // One shard at a time: cast for a gather, or reduced and not yet cast.
  int64_t Communication() const {
    int64_t peak = 0;
    for (int64_t g = 0; g <= blocks(); ++g) {
      if (cast_p) peak = std::max(peak, Shard(g) * e_p);
      if (cast_r) peak = std::max(peak, Shard(g) * e_r);
    }
    return peak;
  }

  // In float32. A block saves its input and the relu's output. The caller holds
  // the input, the output and its gradient.
  int64_t Activation() const {
    const int64_t N = blocks();
    int64_t saved = D;
    int64_t peak = 0;
    for (int64_t i = 0; i < N; ++i) {
      const int64_t h = H[static_cast<size_t>(i)];
      // Forward: before and after the relu, and the result.
      peak = std::max(peak, saved + 2 * h + D);
      saved += h + D;
    }
    // The output, its gradient and the gradient of the head's input.
    saved += 2 * O;
    peak = std::max(peak, saved + D);
    for (int64_t i = N - 1; i >= 0; --i) {
      const int64_t h = H[static_cast<size_t>(i)];
      // Backward: the gradients of the result and of the relu's output, then
      // those of the relu's output and input. The result itself is freed.
      saved -= D;
      peak = std::max(peak, saved + std::max(D + h, 2 * h));
      saved -= h;
    }
    return R * peak * 4;
  }
};
// [/formula]

Formula FormulaOf(const Case& c, int rank) {
  Formula formula;
  formula.groups.push_back({{kOut, kWidth}});
  for (const int64_t inner : c.inner) {
    formula.groups.push_back({{inner, kWidth}, {kWidth, inner}});
  }
  formula.F = c.axes.back().size;
  formula.f = rank % formula.F;
  formula.reshard = c.reshard != Reshard::kNever;
  const int size = PostForwardMeshSize(c.reshard);
  formula.k = size == formula.F ? 0 : size;
  formula.p = c.prefetch;
  formula.b = c.reduce_buffers;
  formula.e_p = SizeOf(c.param_dtype);
  formula.e_r = SizeOf(c.reduce_dtype);
  formula.cast_p = c.param_dtype != kFloat32;
  formula.cast_r = c.reduce_dtype != kFloat32;
  formula.R = c.rows;
  formula.D = kWidth;
  formula.O = kOut;
  formula.H = c.inner;
  return formula;
}

/// Computes down(relu(up(x))).
class Block final : public nn::Module {
 public:
  explicit Block(int64_t inner) : up_(kWidth, inner), down_(inner, kWidth) {
    RegisterModule("up", up_);
    RegisterModule("down", down_);
  }
  const char* type_name() const override { return "Block"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {down_.Forward(Relu(up_.Forward(inputs[0])))};
  }

 private:
  nn::Linear up_;
  nn::Linear down_;
};

class Chain final : public nn::Module {
 public:
  explicit Chain(const std::vector<int64_t>& inner) : head_(kWidth, kOut) {
    for (const int64_t width : inner) {
      blocks_.push_back(std::make_unique<Block>(width));
      RegisterModule(absl::StrCat("blocks.", blocks_.size() - 1),
                     *blocks_.back());
    }
    RegisterModule("head", head_);
    NamedParameters();
  }
  const char* type_name() const override { return "Chain"; }
  std::vector<std::unique_ptr<Block>>& blocks() { return blocks_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    for (auto& block : blocks_) x = block->Forward(x);
    return {head_.Forward(x)};
  }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
  nn::Linear head_;
};

absl::Status Train(World& world, const Case& c, MemoryStats& stats) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, c.axes));
  Chain model(c.inner);
  FullyShardOptions options;
  options.mixed_precision.param_dtype = c.param_dtype;
  options.mixed_precision.reduce_dtype = c.reduce_dtype;
  options.reshard_after_forward = c.reshard != Reshard::kNever;
  options.post_forward_mesh_size = PostForwardMeshSize(c.reshard);
  options.prefetch.forward = options.prefetch.backward = c.prefetch;
  options.reduction.buffers = c.reduce_buffers;
  if (c.ragged) options.ragged_shard = RaggedShard();
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, mesh, options));
  }
  CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  Allocator& allocator = world.context().allocator();
  allocator.ResetPeaks();
  nn::AdamW optimizer(model.Parameters(), {});
  for (int step = 0; step < kSteps; ++step) {
    {
      const Tensor x = Zeros({c.rows, kWidth}, c.param_dtype);
      const Tensor y = model.Forward(x);
      CH_RETURN_IF_ERROR(Backward(y, {.gradient = OnesLike(y.Detach())}));
    }
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
  }
  stats = allocator.stats();
  return world.context().Synchronize();
}

class MemoryFormulaTest : public testing::TestWithParam<Case> {};

void ExpectPeaks(const MemoryStats& stats, const Formula& formula) {
  const auto peak = [&](MemoryClass memory_class) {
    return stats.peak[static_cast<size_t>(memory_class)];
  };
  EXPECT_EQ(peak(MemoryClass::kParameter), formula.Parameter());
  EXPECT_EQ(peak(MemoryClass::kOptimizerState), formula.OptimizerState());
  EXPECT_EQ(peak(MemoryClass::kGatheredParameter), formula.GatheredParameter());
  EXPECT_EQ(peak(MemoryClass::kGradient), formula.Gradient());
  EXPECT_EQ(peak(MemoryClass::kCommunication), formula.Communication());
  if (!formula.cast_p && !formula.cast_r) {
    EXPECT_EQ(peak(MemoryClass::kActivation), formula.Activation());
  }
}

TEST_P(MemoryFormulaTest, PeaksAreThoseOfTheFormula) {
  const Case& c = GetParam();
  std::vector<MemoryStats> real(static_cast<size_t>(c.ranks()));
  const absl::Status status = StatusOfRanks(c.ranks(), [&](World& world) {
    return Train(world, c, real[static_cast<size_t>(world.rank())]);
  });
  ASSERT_TRUE(status.ok()) << status;
  for (int rank = 0; rank < c.ranks(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const Formula formula = FormulaOf(c, rank);
    ExpectPeaks(real[static_cast<size_t>(rank)], formula);
    MemoryStats dry;
    const absl::Status dry_status =
        RunFake({.world_size = c.ranks(), .rank = rank},
                [&](World& world) { return Train(world, c, dry); });
    ASSERT_TRUE(dry_status.ok()) << dry_status;
    ExpectPeaks(dry, formula);
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Reshard reshard : {Reshard::kAlways, Reshard::kNever,
                                Reshard::kToTwo, Reshard::kToThree}) {
    for (const int prefetch : {0, 1, 2}) {
      const auto add = [&](const char* name, std::vector<MeshAxis> axes,
                           std::vector<int64_t> inner, int64_t rows,
                           int reduce_buffers = 1, DType param_dtype = kFloat32,
                           DType reduce_dtype = kFloat32) {
        constexpr const char* kNames[] = {"always", "never", "to_two",
                                          "to_three"};
        cases.push_back(
            {absl::StrCat(name, "_reshard_", kNames[static_cast<int>(reshard)],
                          "_prefetch_", prefetch),
             std::move(axes), std::move(inner), rows, reshard, prefetch,
             reduce_buffers, param_dtype, reduce_dtype});
      };
      add("six", {{"fsdp", 6}}, {23, 3, 11, 37}, 3, 2);
      if (reshard == Reshard::kToThree) continue;
      add("even", {{"fsdp", 4}}, {16, 16, 16}, 8);
      add("uneven", {{"fsdp", 4}}, {23, 3, 11, 37}, 3, 2);
      add("dtypes", {{"fsdp", 4}}, {3, 13, 6}, 5, 1, kFloat64, kBFloat16);
      add("hybrid", {{"replicate", 2}, {"fsdp", 2}}, {9, 21, 2}, 4, 1,
          kBFloat16, kFloat64);
      add("two_even", {{"fsdp", 2}}, {8, 8}, 2);
      if (reshard != Reshard::kToTwo) {
        add("three", {{"fsdp", 3}}, {1, 29, 17, 5}, 1, 1, kBFloat16);
        add("one", {{"fsdp", 1}}, {14, 3}, 6);
      }
    }
  }
  return cases;
}

// Pieces of any sizes, with their gaps.
TEST(RaggedMemoryTest, DryRunsHaveThePeaksOfRanks) {
  for (const Case& of_mesh : Cases()) {
    Case c = of_mesh;
    c.ragged = true;
    SCOPED_TRACE(c.name);
    std::vector<MemoryStats> real(static_cast<size_t>(c.ranks()));
    const absl::Status status = StatusOfRanks(c.ranks(), [&](World& world) {
      return Train(world, c, real[static_cast<size_t>(world.rank())]);
    });
    ASSERT_TRUE(status.ok()) << status;
    for (int rank = 0; rank < c.ranks(); ++rank) {
      MemoryStats dry;
      const absl::Status dry_status =
          RunFake({.world_size = c.ranks(), .rank = rank},
                  [&](World& world) { return Train(world, c, dry); });
      ASSERT_TRUE(dry_status.ok()) << dry_status;
      EXPECT_EQ(dry.peak, real[static_cast<size_t>(rank)].peak)
          << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, MemoryFormulaTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace crosshatch::fsdp
