// SPDX-License-Identifier: Apache-2.0
// Checks that the blocks of a transformer in the layouts of tensor parallelism
// equal the plain ones, without more communication than the layouts require.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

constexpr double kRounding = 2e-5;

// Returns this rank's calls of each kind so far.
std::vector<int64_t> Calls(const DeviceMesh& mesh) {
  std::vector<int64_t> calls(6);
  for (const auto& group : mesh.world().groups()) {
    for (int kind = 0; kind < 6; ++kind) {
      calls[kind] += group->stats().by_kind[kind].calls;
    }
  }
  return calls;
}

std::string CallsSince(const DeviceMesh& mesh, std::vector<int64_t> before) {
  const std::vector<int64_t> now = Calls(mesh);
  std::string text;
  for (int kind = 0; kind < 6; ++kind) {
    if (now[kind] == before[kind]) continue;
    absl::StrAppend(&text, text.empty() ? "" : " ",
                    Name(static_cast<CollectiveKind>(kind)), ":",
                    now[kind] - before[kind]);
  }
  return text;
}

struct Placed {
  Tensor dense;
  Layout layout;
};

// Runs `block` on plain tensors and on distributed ones, and compares the
// results, all gradients, and the collectives with `calls`.
template <typename Block>
void Compare(const DeviceMesh& mesh, const std::vector<Placed>& inputs,
             const std::string& calls, Block block) {
  std::vector<Tensor> dense;
  std::vector<Tensor> spread;
  for (const Placed& input : inputs) {
    dense.push_back(Clone(input.dense));
    spread.push_back(Spread(input.dense, mesh, input.layout));
    if (!IsFloatingPoint(input.dense.dtype())) continue;
    dense.back().set_requires_grad(true);
    spread.back().set_requires_grad(true);
  }
  const Tensor expected = block(dense);
  absl::Status status = Backward(Sum(Square(expected)));
  const std::vector<int64_t> before = Calls(mesh);
  const Tensor actual = block(spread);
  status.Update(Backward(Sum(Square(actual))));
  const std::string made = CallsSince(mesh, before);
  CH_EXPECT_OK(status);
  CH_EXPECT_EQ(made, calls);
  CH_EXPECT_EQ(Differs(actual, expected, kRounding), "");
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!IsFloatingPoint(inputs[i].dense.dtype())) continue;
    const std::string wrong =
        Differs(spread[i].grad(), dense[i].grad(), kRounding);
    CH_EXPECT_EQ(wrong, "") << absl::StrCat("input ", i);
  }
}

Tensor SwiGluBlock(TensorSpan t) {
  return Linear(SwiGlu(Linear(t[0], t[1]), Linear(t[0], t[2])), t[3]);
}

TEST(TensorParallel, MlpNeedsOneReductionEachWay) {
  for (int ranks : {2, 3}) {
    OnMesh({ranks}, [](const DeviceMesh& mesh) {
      const Layout r2 = Whole(mesh, 2);
      const Layout r3 = Whole(mesh, 3);
      Compare(mesh,
              {{Fractions({2, 3, 8}, 1), r3},
               {Fractions({7, 8}, 2), r2.WithShard(0, 0)},
               {Fractions({7, 8}, 3), r2.WithShard(0, 0)},
               {Fractions({8, 7}, 4), r2.WithShard(0, 1)}},
              // The output, and the gradient of the input.
              "all_reduce:2", [&](TensorSpan t) {
                const Tensor y = SwiGluBlock(t);
                return y.is_distributed() ? Redistribute(y, r3) : y;
              });
    });
  }
}

TEST(TensorParallel, SequenceParallelMlpGathersAndScatters) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout r1 = Whole(mesh, 1);
    const Layout r2 = Whole(mesh, 2);
    const Layout r3 = Whole(mesh, 3);
    const Layout sequence = r3.WithShard(0, 1);
    Compare(mesh,
            {{Fractions({2, 5, 8}, 1), sequence},
             {Fractions({7, 8}, 2), r2.WithShard(0, 0)},
             {Fractions({7, 8}, 3), r2.WithShard(0, 0)},
             {Fractions({8, 7}, 4), r2.WithShard(0, 1)},
             {Fractions({8}, 5), r1}},
            // In forward a gather and a scatter, in backward their reverses,
            // and the sum of the norm's weight gradient.
            "all_gather:2 reduce_scatter:2 all_reduce:1", [&](TensorSpan t) {
              Tensor x = RmsNorm(t[0], t[4], 1e-5);
              if (x.is_distributed()) x = Redistribute(x, r3);
              const Tensor y = SwiGluBlock({x, t[1], t[2], t[3]});
              return y.is_distributed() ? Redistribute(y, sequence) : y;
            });
  });
}

TEST(TensorParallel, AttentionSplitsWholeHeads) {
  // Three key heads of two query heads each over two ranks.
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const int64_t width = 4;
    const Layout r2 = Whole(mesh, 2);
    const Layout r3 = Whole(mesh, 3);
    const auto heads = [&](int dim, int64_t unit) {
      return r2.WithDim(dim, {.axes = {0}, .unit = unit});
    };
    const Tensor cos = Fractions({5, 2}, 8);
    const Tensor sin = Fractions({5, 2}, 9);
    Compare(mesh,
            {{Fractions({2, 5, 8}, 1), r3},
             {Fractions({6 * width, 8}, 2), heads(0, 2 * width)},
             {Fractions({3 * width, 8}, 3), heads(0, width)},
             {Fractions({3 * width, 8}, 4), heads(0, width)},
             {Fractions({8, 6 * width}, 5), heads(1, 2 * width)}},
            "all_reduce:2", [&](TensorSpan t) {
              const auto project = [&](const Tensor& w, int64_t count) {
                return View(Linear(t[0], w), {2, 5, count, width});
              };
              const Tensor q = ApplyRope(project(t[1], 6), cos, sin);
              const Tensor k = ApplyRope(project(t[2], 3), cos, sin);
              const Tensor v = project(t[3], 3);
              const Tensor mixed =
                  View(CausalAttention(q, k, v, 0.5), {2, 5, 6 * width});
              const Tensor y = Linear(mixed, t[4]);
              return y.is_distributed() ? Redistribute(y, r3) : y;
            });
  });
}

TEST(TensorParallel, AttentionOfFewerHeadsThanRanks) {
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const Layout r4 = Whole(mesh, 4);
    Compare(
        mesh,
        {{Fractions({1, 3, 4, 2}, 1), r4.WithDim(2, {.axes = {0}, .unit = 2})},
         {Fractions({1, 3, 2, 2}, 2), r4.WithShard(0, 2)},
         {Fractions({1, 3, 2, 2}, 3), r4.WithShard(0, 2)}},
        "", [](TensorSpan t) { return CausalAttention(t[0], t[1], t[2], 1); });
  });
}

TEST(TensorParallel, EmbeddingOfSplitRowsNeedsOneReduction) {
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const Layout r2 = Whole(mesh, 2);
    const Layout r3 = Whole(mesh, 3);
    const Tensor ids = FromValues<int64_t>({2, 3}, {4, 0, 1, 4, 3, 2});
    Compare(mesh, {{Numbers({5, 4}, 1), r2.WithShard(0, 0)}}, "all_reduce:1",
            [&](TensorSpan t) {
              const Tensor y = Embedding(ids, t[0]);
              return y.is_distributed() ? Redistribute(y, r3) : y;
            });
  });
}

TEST(TensorParallel, CrossEntropyOfSplitClassesMovesRowsOnly) {
  for (int ranks : {2, 3}) {
    for (const DType ids_dtype : {kInt64, kInt32, kUInt16}) {
      OnMesh({ranks}, [&](const DeviceMesh& mesh) {
        const Layout classes = Whole(mesh, 3).WithShard(0, 2);
        const Tensor targets =
            ToDType(FromValues<int64_t>({2, 3}, {6, 0, 1, 4, 3, 2}), ids_dtype);
        for (const int64_t ignored : {-100, 4}) {
          // The largest logits; then sums and the targets' logits together.
          Compare(mesh, {{Mul(Fractions({2, 3, 7}, 1), 9), classes}},
                  "all_reduce:2", [&](TensorSpan t) {
                    return CrossEntropy(t[0], targets,
                                        {.ignore_index = ignored});
                  });
        }
      });
    }
  }
}

TEST(TensorParallel, LogitsOfOneRankOnly) {
  // Two classes over three ranks: the last holds none.
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const Layout classes = Whole(mesh, 2).WithShard(0, 1);
    const Tensor targets = FromValues<int64_t>({4}, {0, 1, 1, 0});
    Compare(mesh, {{Fractions({4, 2}, 1), classes}}, "all_reduce:2",
            [&](TensorSpan t) { return CrossEntropy(t[0], targets); });
  });
}

}  // namespace
}  // namespace crosshatch
