// SPDX-License-Identifier: Apache-2.0
// Checks that a program of many ops gives the same bits on inline and on
// adversarial streams. It also takes the same memory with and without
// computation.
#include <cmath>
#include <memory>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kBatch = 2, kTime = 5, kHeads = 4, kKvHeads = 2, kDim = 6;
constexpr int64_t kWidth = kHeads * kDim, kHidden = 17, kVocab = 11;

Tensor Parameter(ShapeView sizes, DType dtype) {
  const MemoryClassScope memory_class(MemoryClass::kParameter);
  const int64_t n = NumElements(sizes);
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(7 * i + values.size()));
  }
  return ToDType(FromValues<float>(sizes, absl::MakeConstSpan(values)), dtype)
      .set_requires_grad(true);
}

Tensor Projection(const Tensor& x, const Tensor& w, int64_t heads) {
  return Reshape(Linear(x, w), {kBatch, kTime, heads, kDim});
}

/// Trains a language model's block for two steps. Returns the loss, then
/// gradients.
std::vector<Tensor> RunProgram(DType dtype) {
  const Tensor table = Parameter({kVocab, kWidth}, dtype);
  const Tensor norm = Parameter({kWidth}, dtype);
  const Tensor bias = Parameter({kWidth}, dtype);
  const Tensor wq = Parameter({kWidth, kWidth}, dtype);
  const Tensor wk = Parameter({kKvHeads * kDim, kWidth}, dtype);
  const Tensor wv = Parameter({kKvHeads * kDim, kWidth}, dtype);
  const Tensor gate = Parameter({kHidden, kWidth}, dtype);
  const Tensor up = Parameter({kHidden, kWidth}, dtype);
  const Tensor down = Parameter({kWidth, kHidden}, dtype);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < kBatch * kTime; ++i) tokens.push_back(i * 5 % kVocab);
  const Tensor ids =
      FromValues<int64_t>({kBatch, kTime}, absl::MakeConstSpan(tokens));
  const Tensor angles =
      Mul(View(Arange(kTime * kDim / 2), {kTime, kDim / 2}), 0.1);
  const Tensor cos = angles;
  const Tensor sin = Sub(1, angles);

  std::vector<Tensor> results;
  for (int step = 0; step < 2; ++step) {
    Tensor x = Embedding(ids, table);
    const Tensor h = RmsNorm(x, norm, 1e-5);
    const Tensor q = ApplyRope(Projection(h, wq, kHeads), cos, sin);
    const Tensor k = ApplyRope(Projection(h, wk, kKvHeads), cos, sin);
    const Tensor v = Projection(h, wv, kKvHeads);
    x = Add(x, Flatten(CausalAttention(q, k, v, 0.4), 2));
    const Tensor n = LayerNorm(x, norm, bias, 1e-5);
    x = Add(x, Linear(SwiGlu(Linear(n, gate), Linear(n, up)), down, bias));
    AddInPlace(x, norm, 0.1);
    CopyInPlace(Select(x, 1, 0), Mean(x.Detach(), {1}));
    const Tensor y =
        Cat({Tanh(Slice(x, -1, 0, 3)), Gelu(Slice(x, -1, 3, 99))}, -1);
    const Tensor loss = CrossEntropy(Linear(y, table), ids);
    results.push_back(loss);
    EXPECT_TRUE(Backward(loss).ok());
    EXPECT_TRUE(Backward(SumOfSquares(Softmax(Mul(norm, bias), 0))).ok());
  }
  for (const Tensor& leaf : {table, norm, bias, wq, wk, wv, gate, up, down}) {
    results.push_back(leaf.grad());
  }
  return results;
}

/// Uses the backend of the test's own thread.
std::vector<std::vector<float>> ValuesOf(RankContextOptions options,
                                         DType dtype) {
  options.backend = &RankContext::Current().backend();
  RankContext context(options);
  const RankContextScope scope(&context);
  std::vector<std::vector<float>> values;
  for (const Tensor& result : RunProgram(dtype)) {
    values.push_back(result.ToVector<float>());
  }
  return values;
}

TEST(StreamsTest, AnAdversaryChangesNoBit) {
  for (DType dtype : {kFloat32, kBFloat16}) {
    const auto expected = ValuesOf({}, dtype);
    for (const auto& values : expected) {
      for (float value : values) ASSERT_TRUE(std::isfinite(value));
    }
    for (uint64_t seed : {1, 2, 3, 4, 5}) {
      EXPECT_EQ(ValuesOf({.adversarial_seed = seed}, dtype), expected) << seed;
    }
    EXPECT_EQ(ValuesOf({.threads = 3}, dtype), expected);
  }
}

MemoryStats StatsOf(bool dry_run, DType dtype) {
  RankContext context(
      {.backend = &RankContext::Current().backend(), .dry_run = dry_run});
  const RankContextScope scope(&context);
  RunProgram(dtype);
  return context.allocator().stats();
}

TEST(StreamsTest, ADryRunTakesTheSameMemory) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    const MemoryStats real = StatsOf(/*dry_run=*/false, dtype);
    const MemoryStats dry = StatsOf(/*dry_run=*/true, dtype);
    EXPECT_EQ(dry.peak, real.peak);
    EXPECT_EQ(dry.peak_total, real.peak_total);
    EXPECT_EQ(dry.current_total, 0);
    EXPECT_GT(real.peak[static_cast<size_t>(MemoryClass::kGradient)], 0);
  }
}

}  // namespace
}  // namespace crosshatch
