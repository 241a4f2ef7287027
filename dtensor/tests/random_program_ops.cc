// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/tests/random_program.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using Random = std::mt19937;
using Call = Instruction;

// Chooses a register for which `fits` holds; returns false if there is none.
// The latest are likelier, so that programs become deep.
bool Choose(const Registers& r, Random& random, Call& call,
            const std::function<bool(int)>& fits) {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(r.tensors.size()); ++i) {
    if (fits(i)) found.push_back(i);
  }
  if (found.empty()) return false;
  const int64_t n = static_cast<int64_t>(found.size());
  call.operands.push_back(found[std::max(Below(n, random), Below(n, random))]);
  return true;
}

bool IsFloat(const Registers& r, int i) {
  return r.tensors[i].dtype() == kFloat64;
}

const Tensor& Chosen(const Registers& r, const Call& call, size_t i = 0) {
  return r.tensors[call.operands[i]];
}

bool AnyFloat(const Registers& r, Random& random, Call& call) {
  return Choose(r, random, call, [&](int i) { return IsFloat(r, i); });
}

// Chooses a register of any dtype, including indices.
bool Any(const Registers& r, Random& random, Call& call) {
  return Choose(r, random, call, [](int) { return true; });
}

// Chooses a register and one of its dims, the call's first number.
bool AnyDim(const Registers& r, Random& random, Call& call) {
  if (!Choose(r, random, call,
              [&](int i) { return r.tensors[i].ndim() > 0; })) {
    return false;
  }
  call.numbers = {Below(Chosen(r, call).ndim(), random)};
  return true;
}

bool FloatDim(const Registers& r, Random& random, Call& call) {
  return AnyDim(r, random, call) && IsFloat(r, call.operands[0]);
}

bool BroadcastTo(ShapeView from, ShapeView to) {
  if (from.size() > to.size()) return false;
  for (size_t d = 0; d < from.size(); ++d) {
    const int64_t size = to[to.size() - from.size() + d];
    if (from[d] != 1 && from[d] != size) return false;
  }
  return true;
}

// Chooses two registers of one dtype whose sizes broadcast together.
bool Pair(const Registers& r, Random& random, Call& call) {
  if (!Any(r, random, call)) return false;
  const Tensor& a = Chosen(r, call);
  const auto meets = [](const Shape& x, const Shape& y) {
    for (size_t d = 1; d <= std::min(x.size(), y.size()); ++d) {
      const int64_t m = x[x.size() - d];
      const int64_t n = y[y.size() - d];
      if (m != n && m != 1 && n != 1) return false;
    }
    return true;
  };
  return Choose(r, random, call, [&](int i) {
    const Tensor& b = r.tensors[i];
    return b.dtype() == a.dtype() && meets(a.sizes(), b.sizes());
  });
}

bool FloatPair(const Registers& r, Random& random, Call& call) {
  return Pair(r, random, call) && IsFloat(r, call.operands[0]);
}

// Chooses dims to reduce over, possibly all, and whether they stay.
bool Reduced(const Registers& r, Random& random, Call& call) {
  if (!Any(r, random, call)) return false;
  call.numbers = {Below(2, random)};
  const int ndim = Chosen(r, call).ndim();
  for (int d = 0; d < ndim; ++d) {
    if (Below(2, random) == 0) call.numbers.push_back(d);
  }
  return true;
}

// As Reduced, but only over dims with elements, for largest and smallest
// elements.
bool ReducedOfSome(const Registers& r, Random& random, Call& call) {
  if (!Reduced(r, random, call)) return false;
  const Shape& sizes = Chosen(r, call).sizes();
  if (call.numbers.size() == 1) return NumElements(sizes) > 0;
  return std::all_of(call.numbers.begin() + 1, call.numbers.end(),
                     [&](int64_t d) { return sizes[d] > 0; });
}

ShapeView DimsOf(const Call& call) {
  return ShapeView(call.numbers).subspan(1);
}

// Chooses a register that may be written (see Registers). Other failures of
// plain tensors are found by trying.
bool Writable(const Registers& r, Random& random, Call& call) {
  if (!Choose(r, random, call, [&](int i) {
        const Tensor& t = r.tensors[i];
        for (int d = 0; d < t.ndim(); ++d) {
          if (t.size(d) > 1 && t.strides()[d] == 0) return false;
        }
        return IsFloat(r, i) && !r.IsLoose(i);
      })) {
    return false;
  }
  // Where autograd records, leaves cannot be written.
  call.no_grad =
      r.differentiable_leaf[call.operands[0]] || Below(2, random) == 0;
  return true;
}

bool WritableAndSource(const Registers& r, Random& random, Call& call) {
  if (!Writable(r, random, call)) return false;
  const Tensor& dst = Chosen(r, call);
  return Choose(r, random, call, [&](int i) {
    const Tensor& src = r.tensors[i];
    return src.dtype() == dst.dtype() && src.storage() != dst.storage() &&
           BroadcastTo(src.sizes(), dst.sizes());
  });
}

// Chooses (a, index) of equal sizes except for one dim. The indices are valid
// for that dim of a.
bool Indexed(const Registers& r, Random& random, Call& call) {
  return FloatDim(r, random, call) && Choose(r, random, call, [&](int i) {
           const Tensor& a = Chosen(r, call);
           const Tensor& index = r.tensors[i];
           const int64_t below = r.indices_below[i];
           if (below == 0 || index.ndim() != a.ndim()) return false;
           for (int d = 0; d < a.ndim(); ++d) {
             if (d != call.numbers[0] && a.size(d) != index.size(d))
               return false;
           }
           return below <= a.size(static_cast<int>(call.numbers[0])) ||
                  index.numel() == 0;
         });
}

// Chooses (base, index, src).
bool Scattered(const Registers& r, Random& random, Call& call) {
  return Indexed(r, random, call) && Choose(r, random, call, [&](int i) {
           return IsFloat(r, i) &&
                  r.tensors[i].sizes() == Chosen(r, call, 1).sizes();
         });
}

const std::vector<OpKind>* Made() {
  using C = const Call&;
  using T = TensorSpan;
  using R = const Registers&;
  return new std::vector<OpKind>{
      {"neg", AnyFloat, [](T t, C) { return Neg(t[0]); }},
      {"abs", AnyFloat, [](T t, C) { return Abs(t[0]); }},
      {"relu", AnyFloat, [](T t, C) { return Relu(t[0]); }},
      {"square", AnyFloat, [](T t, C) { return Square(t[0]); }},
      {"twice", AnyFloat, [](T t, C) { return Mul(t[0], 2); }},
      {"plus one", AnyFloat, [](T t, C) { return Add(t[0], 1); }},
      {"add", Pair, [](T t, C) { return Add(t[0], t[1]); }},
      {"sub", FloatPair, [](T t, C) { return Sub(t[0], t[1], 2); }},
      {"mul", FloatPair, [](T t, C) { return Mul(t[0], t[1]); }},
      {"maximum", FloatPair, [](T t, C) { return Maximum(t[0], t[1]); }},
      {"where", FloatPair,
       [](T t, C) { return Where(Less(t[0], t[1]), t[0], t[1]); }},
      {"sum", Reduced,
       [](T t, C c) { return Sum(t[0], DimsOf(c), c.numbers[0] != 0); }},
      {"sum of squares",
       [](R r, Random& g, Call& c) {
         return Reduced(r, g, c) && IsFloat(r, c.operands[0]);
       },
       [](T t, C c) {
         return SumOfSquares(t[0], DimsOf(c), c.numbers[0] != 0);
       }},
      {"max", ReducedOfSome,
       [](T t, C c) { return Max(t[0], DimsOf(c), c.numbers[0] != 0); }, false,
       false, /*exact=*/false},
      {"min", ReducedOfSome,
       [](T t, C c) { return Min(t[0], DimsOf(c), c.numbers[0] != 0); }, false,
       false, /*exact=*/false},
      {"argmax",
       [](R r, Random& g, Call& c) {
         return AnyDim(r, g, c) &&
                Chosen(r, c).size(static_cast<int>(c.numbers[0])) > 0;
       },
       [](T t, C c) { return ArgMax(t[0], c.numbers[0]); }},
      {"cumsum", FloatDim, [](T t, C c) { return CumSum(t[0], c.numbers[0]); }},
      {"sort", FloatDim,
       [](T t, C c) { return Sort(t[0], c.numbers[0]).values; }},
      {"slice",
       [](R r, Random& g, Call& c) {
         if (!AnyDim(r, g, c)) return false;
         const int64_t size = Chosen(r, c).size(static_cast<int>(c.numbers[0]));
         const int64_t a = Below(size + 1, g);
         const int64_t b = Below(size + 1, g);
         c.numbers.push_back(std::min(a, b));
         c.numbers.push_back(std::max(a, b));
         return true;
       },
       [](T t, C c) {
         return Slice(t[0], c.numbers[0], c.numbers[1], c.numbers[2]);
       }},
      {"select",
       [](R r, Random& g, Call& c) {
         if (!AnyDim(r, g, c)) return false;
         const int64_t size = Chosen(r, c).size(static_cast<int>(c.numbers[0]));
         if (size == 0) return false;
         c.numbers.push_back(Below(size, g));
         return true;
       },
       [](T t, C c) { return Select(t[0], c.numbers[0], c.numbers[1]); }},
      {"squeeze",
       [](R r, Random& g, Call& c) {
         return AnyDim(r, g, c) &&
                Chosen(r, c).size(static_cast<int>(c.numbers[0])) == 1;
       },
       [](T t, C c) { return Squeeze(t[0], c.numbers[0]); }},
      {"unsqueeze",
       [](R r, Random& g, Call& c) {
         if (!Any(r, g, c) || Chosen(r, c).ndim() > 2) return false;
         c.numbers = {Below(Chosen(r, c).ndim() + 1, g)};
         return true;
       },
       [](T t, C c) { return Unsqueeze(t[0], c.numbers[0]); }},
      {"permute",
       [](R r, Random& g, Call& c) {
         if (!Any(r, g, c)) return false;
         c.numbers.resize(Chosen(r, c).ndim());
         std::iota(c.numbers.begin(), c.numbers.end(), 0);
         std::shuffle(c.numbers.begin(), c.numbers.end(), g);
         return true;
       },
       [](T t, C c) { return Permute(t[0], c.numbers); }},
      {"expand",
       [](R r, Random& g, Call& c) {
         if (!Any(r, g, c)) return false;
         const Shape& sizes = Chosen(r, c).sizes();
         if (sizes.size() < 3 && Below(2, g) == 0) c.numbers = {Below(4, g)};
         for (const int64_t size : sizes) {
           c.numbers.push_back(size == 1 ? Below(4, g) : size);
         }
         return true;
       },
       [](T t, C c) { return Expand(t[0], c.numbers); }},
      {"flatten",
       [](R r, Random& g, Call& c) {
         return Choose(r, g, c, [&](int i) {
           // For no elements, -1 could be any size.
           return r.tensors[i].ndim() > 1 && r.tensors[i].numel() > 0 &&
                  r.tensors[i].is_contiguous();
         });
       },
       [](T t, C) {
         return View(t[0], {-1, t[0].size(0)});
       }},
      {"reshape",
       [](R r, Random& g, Call& c) {
         return Choose(r, g, c, [&](int i) { return r.tensors[i].ndim() > 1; });
       },
       [](T t, C) { return Reshape(t[0], {t[0].numel()}); }},
      {"cat",
       [](R r, Random& g, Call& c) {
         return AnyDim(r, g, c) && Choose(r, g, c, [&](int i) {
                  const Tensor& a = Chosen(r, c);
                  const Tensor& b = r.tensors[i];
                  if (a.dtype() != b.dtype() || a.ndim() != b.ndim()) {
                    return false;
                  }
                  for (int d = 0; d < a.ndim(); ++d) {
                    if (d != c.numbers[0] && a.size(d) != b.size(d)) {
                      return false;
                    }
                  }
                  return true;
                });
       },
       [](T t, C c) { return Cat(t, c.numbers[0]); }},
      {"pad",
       [](R r, Random& g, Call& c) {
         if (!FloatDim(r, g, c)) return false;
         c.numbers.push_back(Below(2, g));
         c.numbers.push_back(Below(2, g));
         return true;
       },
       [](T t, C c) {
         return Pad(t[0], c.numbers[0], c.numbers[1], c.numbers[2]);
       }},
      {"clone", Any, [](T t, C) { return Clone(t[0]); }},
      {"contiguous", Any, [](T t, C) { return Contiguous(t[0]); }},
      {"matmul",
       [](R r, Random& g, Call& c) {
         if (!Choose(r, g, c, [&](int i) {
               return IsFloat(r, i) && r.tensors[i].ndim() >= 2;
             })) {
           return false;
         }
         c.numbers = {Below(2, g), Below(2, g)};
         const Tensor& a = Chosen(r, c);
         const int64_t k = a.size(c.numbers[0] != 0 ? -2 : -1);
         return Choose(r, g, c, [&](int i) {
           const Tensor& b = r.tensors[i];
           return IsFloat(r, i) && b.ndim() == 2 &&
                  b.size(c.numbers[1] != 0 ? -1 : -2) == k;
         });
       },
       [](T t, C c) {
         return MatMul(t[0], t[1], c.numbers[0] != 0, c.numbers[1] != 0);
       }},
      {"gather", Indexed,
       [](T t, C c) { return Gather(t[0], c.numbers[0], t[1]); }},
      {"index select",
       [](R r, Random& g, Call& c) {
         return FloatDim(r, g, c) && Choose(r, g, c, [&](int i) {
                  const int64_t below = r.indices_below[i];
                  return below != 0 && r.tensors[i].ndim() == 1 &&
                         (below <= Chosen(r, c).size(
                                       static_cast<int>(c.numbers[0])) ||
                          r.tensors[i].numel() == 0);
                });
       },
       [](T t, C c) { return IndexSelect(t[0], c.numbers[0], t[1]); }},
      {"scatter add", Scattered,
       [](T t, C c) { return ScatterAdd(t[0], c.numbers[0], t[1], t[2]); }},
      {"scatter", Scattered,
       [](T t, C c) { return Scatter(t[0], c.numbers[0], t[1], t[2]); }},
      // Changes of layout, and the local/global boundary. They do nothing to
      // plain tensors.
      {"redistribute",
       [](R r, Random& g, Call& c) {
         if (!Any(r, g, c)) return false;
         c.layout = RandomLayout(r.mesh, Chosen(r, c).ndim(), g);
         return IsFloat(r, c.operands[0]) || !c.layout->is_partial();
       },
       [](T t, C c) {
         return t[0].is_distributed() ? Redistribute(t[0], *c.layout) : t[0];
       },
       false, /*loose=*/true},
      {"to local and back", AnyFloat,
       [](T t, C) {
         if (!t[0].is_distributed()) return t[0];
         // Local gradients pass through sums only.
         const Layout layout = LayoutOf(t[0]).WithoutPartials();
         const Tensor whole = Redistribute(t[0], layout);
         return FromLocal(ToLocal(whole, layout), MeshOf(whole), layout,
                          whole.sizes(), layout);
       },
       false, /*loose=*/true},
      {"add in place", WritableAndSource,
       [](T t, C) { return AddInPlace(t[0], t[1], 2), t[0]; },
       /*in_place=*/true},
      {"copy in place", WritableAndSource,
       [](T t, C) { return CopyInPlace(t[0], t[1]), t[0]; },
       /*in_place=*/true},
      {"scale in place", Writable,
       [](T t, C) { return MulInPlace(t[0], 2), t[0]; },
       /*in_place=*/true},
      {"fill in place", Writable,
       [](T t, C) { return FillInPlace(t[0], 3), t[0]; },
       /*in_place=*/true},
      {"fill uniform",
       [](R r, Random& g, Call& c) {
         if (!Writable(r, g, c)) return false;
         c.no_grad = true;
         return true;
       },
       [](T t, C) {
         FillUniform(t[0], 1, "random program", 5, 5);
         return t[0];
       },
       /*in_place=*/true},
  };
}

}  // namespace

const std::vector<OpKind>& OpKinds() {
  static const std::vector<OpKind>& kinds = *Made();
  return kinds;
}

}  // namespace crosshatch
