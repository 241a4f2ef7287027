// SPDX-License-Identifier: Apache-2.0

/// \file
/// Redistributions on a separate stream: users of the result wait, and nobody
/// else. Runs on adversarial streams with several seeds, on which anything
/// unordered gives wrong results.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

constexpr RedistributeOptions kAsync = {.async = true};

void OnAdversarialMeshes(const std::vector<int>& shape,
                         const std::function<void(const DeviceMesh&)>& body) {
  const uint64_t seeds = FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", 4);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("adversarial seed ", seed));
    OnMesh(shape, body, {.test = {.adversarial_seed = seed}});
  }
}

TEST(AsyncRedistribute, TheFirstUseWaits) {
  OnAdversarialMeshes({2, 2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({5, 3}, 1);
    const Tensor twice = Mul(dense, 2);
    const auto layouts = AllLayouts(mesh.layout(), 2, true);
    size_t i = 0;
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const Tensor x = Spread(dense, mesh, from);
        const Tensor y = Redistribute(x, to, kAsync);
        std::string wrong;
        // An op, another redistribution, the local part, the global tensor.
        switch (i++ % 4) {
          case 0:
            wrong = Differs(Mul(y, 2), twice);
            break;
          case 1:
            wrong = Differs(Redistribute(y, from, kAsync), dense);
            break;
          case 2:
            wrong = Differs(
                MakeDTensor(Clone(LocalTensor(y)), mesh, to, {5, 3}), dense);
            break;
          default:
            wrong = Differs(y, dense);
        }
        CH_EXPECT_EQ(wrong, "") << from.ToString() << " -> " << to.ToString();
      }
    }
  });
}

TEST(AsyncRedistribute, AnUnusedResultIsHarmless) {
  OnAdversarialMeshes({2}, [](const DeviceMesh& mesh) {
    const Shape sizes = {64, 3};
    const Layout r = Whole(mesh, 2);
    const Layout rows = r.WithShard(0, 0);
    const Layout sums = r.WithPartial(0, ReduceOp::kSum);
    for (int i = 0; i < 8; ++i) {
      const Tensor dense = Numbers(sizes, i);
      for (const auto& [from, to] :
           {std::pair(rows, r), {sums, rows}, {sums, r}}) {
        Tensor x = Spread(dense, mesh, from);
        Tensor y = Redistribute(x, to, kAsync);
        const int64_t numel = LocalTensor(x).numel();
        if (i % 2 == 0) {
          // The result: its memory is reused next.
          y = Tensor();
          const Tensor next =
              Full(LocalTensor(Spread(dense, mesh, to)).sizes(), 7);
          CH_EXPECT_EQ(Differs(next, Full(next.sizes(), 7)), "");
        } else {
          // The source: its memory is reused before it was read.
          x = Tensor();
          const Tensor next = Full({numel}, -100);
          CH_EXPECT_EQ(Differs(y, dense), "");
          CH_EXPECT_EQ(Differs(next, Full({numel}, -100)), "");
        }
      }
    }
  });
}

TEST(AsyncRedistribute, EveryStreamThatUsesItWaits) {
  OnAdversarialMeshes({2}, [](const DeviceMesh& mesh) {
    RankContext& context = mesh.world().context();
    const Layout r = Whole(mesh, 1);
    const Tensor dense = Numbers({257}, 2);
    const Tensor y =
        Redistribute(Spread(dense, mesh, r.WithShard(0, 0)), r, kAsync);
    Tensor sum;
    Stream& other = context.SideStream("other");
    {
      StreamScope scope(other);
      sum = Mul(y, 3);
    }
    CH_EXPECT_EQ(Differs(Mul(y, 2), Mul(dense, 2)), "");
    context.compute_stream().Wait(other.Record());
    CH_EXPECT_EQ(Differs(sum, Mul(dense, 3)), "");
  });
}

TEST(AsyncRedistribute, TheSourceIsReadAfterItWasWritten) {
  OnAdversarialMeshes({2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 2);
    for (int i = 0; i < 8; ++i) {
      const Tensor row = Numbers({1, 3}, i);
      const Tensor rows = Expand(Mul(row, 2), {4, 3});
      const Tensor x = MakeDTensor(rows, mesh, r.WithShard(0, 0), {8, 3});
      CH_EXPECT_EQ(Differs(Redistribute(x, r, kAsync),
                           Contiguous(Expand(Mul(row, 2), {8, 3}))),
                   "");
    }
  });
}

TEST(AsyncRedistribute, SeveralAreInFlightAtATime) {
  OnAdversarialMeshes({2, 2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 1);
    std::vector<Tensor> results;
    for (int i = 0; i < 6; ++i) {
      const Layout from = i % 2 == 0 ? r.WithShard(i / 2 % 2, 0)
                                     : r.WithPartial(0, ReduceOp::kSum);
      results.push_back(Redistribute(Spread(Numbers({33}, i), mesh, from),
                                     r.WithShard(1, 0), kAsync));
    }
    for (int i = 5; i >= 0; --i) {
      CH_EXPECT_EQ(Differs(results[i], Numbers({33}, i)), "");
    }
  });
}

TEST(AsyncRedistribute, IsDifferentiable) {
  OnAdversarialMeshes({2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({5, 3}, 1);
    const auto layouts = AllLayouts(mesh.layout(), 2, true);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        Tensor x = Spread(dense, mesh, from);
        x.set_requires_grad(true);
        ExpectGradientsThrough(x, Redistribute(x, to, kAsync), dense);
      }
    }
  });
}

TEST(RedistributeDTypes, MovesInTheDTypesGiven) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    // 8 bits of a bfloat16 hold 256, not 257.
    const Tensor dense = FromValues<float>({4}, {256, 257, -1, 259});
    const Tensor rounded = ToDType(ToDType(dense, DType::kBFloat16), kFloat32);
    const Layout r = Whole(mesh, 1);
    const Layout rows = r.WithShard(0, 0);

    Tensor x = Spread(dense, mesh, rows);
    x.set_requires_grad(true);
    const int64_t before = GetRedistributeCounts().cost.bytes;
    const Tensor y = Redistribute(x, r, {.forward_dtype = DType::kBFloat16});
    CH_EXPECT_EQ(GetRedistributeCounts().cost.bytes - before, 2 * 2);
    CH_EXPECT_EQ(Differs(y, ToDType(dense, DType::kBFloat16)), "");
    // Each rank's summand of the gradient is 257 / 2 + 1 or the like; bfloat16
    // would round it, the tensor's own dtype does not.
    const Layout sums = r.WithPartial(0, ReduceOp::kSum);
    absl::Status status =
        Backward(Redistribute(y, sums, {.forward_dtype = kFloat32}),
                 {.gradient = Spread(dense, mesh, r)});
    CH_EXPECT_OK(status);
    CH_EXPECT_EQ(Differs(x.grad(), rounded), "");

    // The gradient alone.
    Tensor z = Spread(dense, mesh, rows);
    z.set_requires_grad(true);
    const Tensor whole =
        Redistribute(z, r, {.backward_dtype = DType::kBFloat16});
    CH_EXPECT_EQ(Differs(whole, dense), "");
    status = Backward(whole, {.gradient = Spread(dense, mesh, r)});
    CH_EXPECT_OK(status);
    CH_EXPECT_EQ(Differs(z.grad(), rounded), "");

    // The same layout in another dtype is a cast.
    CH_EXPECT_EQ(
        Differs(Redistribute(z, rows, {.forward_dtype = DType::kFloat64}),
                ToDType(dense, DType::kFloat64)),
        "");
    CH_EXPECT_TRUE(
        Redistribute(z, rows, {.forward_dtype = kFloat32}).SameAs(z));
  });
}

}  // namespace
}  // namespace crosshatch
