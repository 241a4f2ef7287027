// SPDX-License-Identifier: Apache-2.0
// Checks that results share the memory of their operands as on one device, for
// all layouts and uneven shards, with the same effect in autograd.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dispatch/register_op_rule.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

using Form = std::function<Tensor(const Tensor&)>;
struct NamedForm {
  const char* name;
  Form form;
};

// Views of a tensor [4, 6] that move no elements between ranks, in any layout.
std::vector<NamedForm> Forms() {
  return {
      {"contiguous", [](const Tensor& a) { return Contiguous(a); }},
      {"transpose", [](const Tensor& a) { return Transpose(a, 0, 1); }},
      {"contiguous of transpose",
       [](const Tensor& a) { return Contiguous(Transpose(a, 0, 1)); }},
      {"reshape of transpose",
       [](const Tensor& a) {
         return Reshape(Transpose(Unsqueeze(a, 0), 0, 2), {6, 4});
       }},
      {"view",
       [](const Tensor& a) {
         return View(a, {1, 4, 6});
       }},
      {"unsqueeze of contiguous",
       [](const Tensor& a) { return Unsqueeze(Contiguous(a), 1); }},
      {"slice of all", [](const Tensor& a) { return Slice(a, 0, 0, 4); }},
      {"contiguous of an unsqueezed transpose",
       [](const Tensor& a) {
         return Contiguous(Unsqueeze(Transpose(a, 0, 1), 0));
       }},
      {"to its own dtype",
       [](const Tensor& a) { return ToDType(a, a.dtype()); }},
      {"reduce_partial", [](const Tensor& a) { return ReducePartial(a); }},
      {"clone", [](const Tensor& a) { return Clone(a); }},
  };
}

class AliasTest : public ::testing::TestWithParam<std::vector<int>> {};

// In NoGrad, a write to the result or the operand is visible in the other if
// and only if it is on one device.
TEST_P(AliasTest, FollowsTheWhole) {
  for (const Shape& sizes : {Shape{4, 6}, Shape{4, 0}, Shape{4, 1}}) {
    for (const auto& [name, form] : Forms()) {
      if (sizes[1] != 6 && std::string(name).find("view") == 0) continue;
      if (sizes[1] != 6 && std::string(name).find("reshape") == 0) continue;
      const auto run = [&, form = form](const Tensor& a, bool write_result) {
        const Tensor b = form(a);
        FillInPlace(write_result ? b : a, 7);
        return std::vector<Tensor>{a, b};
      };
      NoGrad no_grad;
      const std::vector<Tensor> by_result = run(Numbers(sizes, 1), true);
      const std::vector<Tensor> by_operand = run(Numbers(sizes, 1), false);
      OnMesh(GetParam(), [&, name = name](const DeviceMesh& mesh) {
        NoGrad on_rank;
        for (const Layout& layout : AllLayouts(mesh.layout(), 2, false)) {
          for (const bool write_result : {true, false}) {
            const std::vector<Tensor> got = run(
                Spread(Numbers(sizes, 1), mesh, layout).Detach(), write_result);
            const auto& expected = write_result ? by_result : by_operand;
            for (size_t i = 0; i < got.size(); ++i) {
              CH_EXPECT_EQ(Differs(got[i], expected[i]), "")
                  << name << " of " << layout.ToString()
                  << (write_result ? " written" : "") << ", tensor " << i;
            }
          }
        }
      });
    }
  }
}

// In grad mode: the gradient includes writes to the result of Contiguous.
TEST_P(AliasTest, OfContiguousHasTheRightGradient) {
  const auto run = [](const Tensor& x, bool transposed) {
    const Tensor h = Mul(x, 2.0);
    const Tensor c = Contiguous(transposed ? Transpose(h, 0, 1) : h);
    MulInPlace(c, 3.0);
    return Sum(Add(SumOfSquares(h), SumOfSquares(c)));
  };
  for (const bool transposed : {false, true}) {
    const Tensor dense = Numbers({4, 5}, 3).set_requires_grad(true);
    ASSERT_TRUE(Backward(run(dense, transposed)).ok());
    OnMesh(GetParam(), [&](const DeviceMesh& mesh) {
      for (const Layout& layout : AllLayouts(mesh.layout(), 2, false)) {
        Tensor x = Spread(Numbers({4, 5}, 3), mesh, layout);
        x.set_requires_grad(true);
        CH_EXPECT_OK(Backward(run(x, transposed)));
        CH_EXPECT_EQ(Differs(x.grad(), dense.grad()), "") << layout.ToString();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, AliasTest,
                         ::testing::Values(std::vector<int>{1},
                                           std::vector<int>{2},
                                           std::vector<int>{3},
                                           std::vector<int>{2, 2}));

// An op, or a program of its rule, may return its input itself.
class Identity final : public Op {
 public:
  static constexpr OpInfo kInfo = {"identity"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override { return {inputs[0]}; }
};
TEST(OwnMemory, OfResultsThatAnOpTookFromItsInput) {
  for (const bool program : {false, true}) {
    OnMesh({{"dp", 2}}, [&](const DeviceMesh& mesh) {
      RegisterOpRule(Identity::kInfo, [program](const RuleCall& call) {
        RuleResult result =
            SolveFactors(call, PointwiseFactors(call, Linearity::kMultilinear));
        if (program) {
          result.program = [](const Op&, TensorSpan locals, const DeviceMesh&) {
            return TensorList{locals[0]};
          };
        }
        return result;
      });
      const NoGrad no_grad;
      const Tensor x = DistributeTensor(Ones({4}), mesh, Rows(mesh, 1));
      const Tensor y = Apply1(Identity(), {&x, 1});
      AddInPlace(y, Mul(x, 5));
      CH_EXPECT_EQ(FullTensor(x).ToVector<float>(), std::vector<float>(4, 1));
      CH_EXPECT_EQ(FullTensor(y).ToVector<float>(), std::vector<float>(4, 6));
      return absl::OkStatus();
    });
  }
}

TEST(LocalBoundaryDeathTest, RefusesWritesThatLoseGradients) {
  // Writes whose gradient would be lost.
  ExpectDeathOn(
      {2},
      "add_in_place: a view of a distributed tensor or of its local tensor",
      [](const DeviceMesh& mesh) {
        const Tensor x = Ones({2, 3}).set_requires_grad(true);
        const Tensor h = Mul(x, 2.0);
        AddInPlace(FromLocal(h, mesh, Whole(mesh, 2), Whole(mesh, 2)),
                   Replicated(Ones({3}), mesh));
      });
  ExpectDeathOn(
      {2},
      "add_in_place: a view of a distributed tensor or of its local tensor",
      [](const DeviceMesh& mesh) {
        const Tensor x =
            Spread(Ones({4, 3}), mesh, Rows(mesh)).set_requires_grad(true);
        AddInPlace(ToLocal(Mul(x, 2.0), Rows(mesh)), Ones({3}));
      });
  ExpectDeathOn(
      {2}, "fill_in_place: a leaf that requires a gradient",
      [](const DeviceMesh& mesh) {
        const Tensor x =
            Spread(Ones({4, 3}), mesh, Rows(mesh)).set_requires_grad(true);
        FillInPlace(ToLocal(x, Rows(mesh)), 0);
      });
  ExpectDeathOn({2}, "its local tensor.*is used after an in-place write",
                [](const DeviceMesh& mesh) {
                  const Tensor x = Ones({2, 3}).set_requires_grad(true);
                  const Tensor h = Mul(x, 2.0);
                  const Tensor d =
                      FromLocal(h, mesh, Whole(mesh, 2), Whole(mesh, 2));
                  AddInPlace(h, x);
                  Sum(d);
                });
}

// A result that may be a copy: a view, or a part of what was redistributed.
TEST(AliasDeathTest, AliasesAreNeitherWrittenNorUsedAfterAWriteToTheirBase) {
  const std::vector<std::function<Tensor(const Tensor&)>> shadows = {
      [](const Tensor& x) { return Slice(x, 0, 0, 1); },
      [](const Tensor& x) { return Select(x, 0, 3); },
      [](const Tensor& x) { return Transpose(Slice(x, 0, 1, 4), 0, 1); },
  };
  for (const auto& shadow : shadows) {
    ExpectDeathOn(
        {3}, "is used after an in-place write to its base tensor",
        [&](const DeviceMesh& mesh) {
          NoGrad no_grad;
          // Rank 2 of 3 has one row, which some of these return whole.
          const Tensor x = Spread(Numbers({4, 3}, 1), mesh, Rows(mesh));
          const Tensor s = shadow(x);
          FillInPlace(x, 7);
          Sum(s);
        });
    ExpectDeathOn(
        {3}, "fill_in_place: .* cannot be written.*Clone it",
        [&](const DeviceMesh& mesh) {
          NoGrad no_grad;
          FillInPlace(shadow(Spread(Ones({4, 3}), mesh, Rows(mesh))), 7);
        });
  }
  ExpectDeathOn(
      {3}, "is used after an in-place write to its base tensor",
      [](const DeviceMesh& mesh) {
        NoGrad no_grad;
        const Tensor x = Spread(Numbers({4, 3}, 1), mesh, Whole(mesh, 2));
        const Tensor s = Redistribute(x, Rows(mesh));
        FillInPlace(x, 7);
        Sum(s);
      });
  for (const bool normal : {false, true}) {
    ExpectDeathOn({3}, "random values: .* cannot be written",
                  [&](const DeviceMesh& mesh) {
                    const Tensor s = Redistribute(
                        Spread(Ones({4, 3}), mesh, Whole(mesh, 2)), Rows(mesh));
                    normal ? FillNormal(s, 1, "s") : FillUniform(s, 1, "s");
                  });
    ExpectDeathOn(
        {3}, "random values for an expanded tensor",
        [&](const DeviceMesh& mesh) {
          const Tensor wide = Expand(Replicated(Ones({1, 3}), mesh), {2, 3});
          normal ? FillNormal(wide, 1, "s") : FillUniform(wide, 1, "s");
        });
  }
  // With one row on this rank, no two elements of the part share memory.
  ExpectDeathOn({3}, "fill_in_place into an expanded tensor",
                [](const DeviceMesh& mesh) {
                  NoGrad no_grad;
                  const Tensor one = Spread(Ones({1, 3}), mesh, Whole(mesh, 2));
                  FillInPlace(Expand(one, {2, 3}), 7);
                });
}

// The gradient of `x` has two summands, one of them on a rank without rows.
TEST(SumOfGradients, IsTheSameOnRanksWithoutRows) {
  const auto loss = [](const Tensor& bias, const Tensor& rows,
                       const Tensor& more) {
    const Tensor joined = Cat({Mul(rows, bias), Mul(more, bias)}, 0);
    return Sum(Add(Sum(joined), Sum(Mul(bias, bias))));
  };
  const auto leaf = [](Tensor t) { return t.set_requires_grad(true); };
  const Tensor bias = leaf(Numbers({2}, 1));
  const Tensor rows = leaf(Numbers({3, 2}, 2));
  const Tensor more = leaf(Numbers({5, 2}, 4));
  ASSERT_TRUE(Backward(loss(bias, rows, more)).ok());
  OnMeshes({{4}, {2, 2}}, [&](const DeviceMesh& mesh) {
    for (const Layout& of_bias : AllLayouts(mesh.layout(), 1, false)) {
      for (const Layout& of_rows : AllLayouts(mesh.layout(), 2, false)) {
        const Tensor b = leaf(Spread(bias.Detach(), mesh, of_bias));
        const Tensor r = leaf(Spread(rows.Detach(), mesh, of_rows));
        const Tensor m = leaf(Spread(more.Detach(), mesh, Rows(mesh)));
        CH_EXPECT_OK(Backward(loss(b, r, m)));
        for (const auto& [got, expected] :
             {std::pair(b, bias), std::pair(r, rows), std::pair(m, more)}) {
          CH_EXPECT_EQ(Differs(got.grad(), expected.grad()), "")
              << of_bias.ToString() << " " << of_rows.ToString();
        }
      }
    }
  });
}

// Uses of a vector that give gradients in different layouts: the vector's, that
// of a part of it, replicated, or partial.
std::vector<NamedForm> Uses(const Tensor& rows) {
  return {
      {"square", [](const Tensor& x) { return Sum(Mul(x, x)); }},
      {"rows", [rows](const Tensor& x) { return Sum(Mul(rows, x)); }},
      {"product",
       [rows](const Tensor& x) { return Sum(MatMul(rows, Unsqueeze(x, 1))); }},
      {"first", [](const Tensor& x) { return Sum(Square(Slice(x, 0, 0, 1))); }},
      {"cat",
       [](const Tensor& x) {
         return Sum(Square(Cat({x, x}, 0)));
       }},
      {"sum", [](const Tensor& x) { return Square(Sum(x)); }},
  };
}

// Ranks without elements add in the same order as the others.
TEST(SumOfGradients, OfTwoUsesIsTheSameInEitherOrder) {
  const Tensor vector = Numbers({2}, 1);
  const Tensor rows = Numbers({3, 2}, 2);
  const auto loss = [](const Tensor& x, const Form& a, const Form& b) {
    // Uses a tensor that is not a leaf, too.
    const Tensor twice = Mul(x, 2.0);
    const Tensor of_leaf = Add(a(x), b(x));
    return Add(Add(a(twice), b(twice)), of_leaf);
  };
  const size_t count = Uses(rows).size();
  OnMeshes({{4}, {2, 2}}, [&](const DeviceMesh& mesh) {
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < count; ++k) {
        const std::vector<NamedForm> plain = Uses(rows);
        const Tensor dense = vector.Detach();
        Tensor x = Clone(dense).set_requires_grad(true);
        CH_EXPECT_OK(Backward(loss(x, plain[i].form, plain[k].form)));
        for (const Layout& layout : AllLayouts(mesh.layout(), 1, false)) {
          const std::vector<NamedForm> uses =
              Uses(Spread(rows, mesh, Rows(mesh)));
          Tensor y = Spread(vector, mesh, layout);
          y.set_requires_grad(true);
          CH_EXPECT_OK(Backward(loss(y, uses[i].form, uses[k].form)));
          CH_EXPECT_EQ(Differs(y.grad(), x.grad()), "")
              << uses[i].name << ", " << uses[k].name << " of "
              << layout.ToString();
        }
      }
    }
  });
}

// A given gradient may share memory with the destination of Backward.
TEST(GivenGradient, IsReadWithItsOldValues) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(mesh.layout(), 1, false)) {
      const auto expect_of = [&](const auto& part_of) {
        Tensor x = Spread(Numbers({3}, 1), mesh, layout);
        Tensor z = Spread(Numbers({3}, 2), mesh, layout);
        x.set_requires_grad(true);
        z.set_requires_grad(true);
        const Tensor ones = Ones({3}, x.dtype());
        x.set_grad(Spread(ones, mesh, layout));
        CH_EXPECT_OK(Backward(Add(Mul(x, 3.0), Add(x, z)),
                              {.gradient = part_of(x.grad())}));
        CH_EXPECT_EQ(Differs(x.grad(), Mul(ones, 5.0)), "")
            << layout.ToString();
        CH_EXPECT_EQ(Differs(z.grad(), ones), "") << layout.ToString();
      };
      expect_of([](const Tensor& grad) { return grad; });
      expect_of([](const Tensor& grad) { return grad.Detach(); });
      expect_of([](const Tensor& grad) { return Contiguous(grad); });
    }
  });
}

// Parts are views in the layout of the whole, without the dropped dim.
TEST(Unbind, KeepsTheSplitsOfOtherDims) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({3, 2, 5}, 1);
    const Layout whole = Whole(mesh, 3);
    const Layout part = Whole(mesh, 2);
    const auto expect = [&](const Layout& from, int64_t dim, const Layout& to) {
      const Tensor x = Spread(dense, mesh, from);
      const TensorList parts = Unbind(x, dim);
      CH_EXPECT_EQ(static_cast<int64_t>(parts.size()), dense.size(dim));
      for (size_t i = 0; i < parts.size(); ++i) {
        CH_EXPECT_EQ(LayoutOf(parts[i]), to) << from.ToString();
        CH_EXPECT_EQ(
            Differs(parts[i], Select(dense, dim, static_cast<int64_t>(i))), "")
            << from.ToString();
        CH_EXPECT_EQ(LocalTensor(parts[i]).storage(), LocalTensor(x).storage());
      }
    };
    expect(whole.WithShard(0, 2), 1, part.WithShard(0, 1));
    expect(whole.WithShard(0, 0).WithShard(1, 2), 1,
           part.WithShard(0, 0).WithShard(1, 1));
  });
}

// Backward accumulates gradients in memory without other users. That must not
// count as a program's write to a possible copy. Some ranks have none of the
// one element, so their parts share no memory.
TEST(Shadow, OutlivesTheSumsOfBackward) {
  OnMesh({5}, [](const DeviceMesh& mesh) {
    // The sum of the gradients of a tensor and of its part.
    const auto weighed = [](absl::Span<const Tensor> tensors) {
      Tensor sum;
      for (const Tensor& t : tensors) {
        const Tensor weight = Numbers(t.sizes(), t.ndim() + 5);
        const Tensor term = Sum(Mul(t, ReplicatedLike(weight, t)));
        sum = sum.defined() ? Add(sum, term) : term;
      }
      return sum;
    };
    const auto run = [&](const Tensor& x, const Tensor& w,
                         const std::function<Tensor(const Tensor&)>& split,
                         const std::function<Tensor(const Tensor&)>& back) {
      TensorList leaves = {x, w};
      for (Tensor& leaf : leaves) leaf.set_requires_grad(true);
      const Tensor part = split(x);
      const Tensor both = Add(part, x);
      const Tensor all = Add(part, both);
      const Tensor y = Mul(w, all);
      const Tensor loss = weighed({x, w, part, both, back(all), y});
      const TensorList first =
          Gradients(loss, leaves, {.create_graph = true}).value();
      const TensorList second = Gradients(weighed(first), leaves).value();
      return TensorList{first[0], first[1], second[0], second[1]};
    };
    const auto same = [](const Tensor& t) { return t; };
    for (const Shape& sizes : {Shape{1}, Shape{3}, Shape{1, 0}}) {
      const int ndim = static_cast<int>(sizes.size());
      const Layout whole = Whole(mesh, ndim);
      const Layout rows = whole.WithShard(0, 0);
      const Tensor dense = Numbers(sizes, 1);
      const Tensor other = Numbers(sizes, 2);
      const TensorList expected = run(Clone(dense), Clone(other), same, same);
      const TensorList actual = run(
          Spread(dense, mesh, whole), Spread(other, mesh, whole),
          [&](const Tensor& t) { return Redistribute(t, rows); },
          [&](const Tensor& t) { return WithGradientIn(t, rows); });
      for (size_t i = 0; i < expected.size(); ++i) {
        CH_EXPECT_EQ(Differs(actual[i], expected[i]), "") << i;
      }
    }
  });
}

}  // namespace
}  // namespace crosshatch
