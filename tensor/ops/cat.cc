// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cat.h"

#include <algorithm>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {

TensorList CatOp::Forward(TensorSpan inputs) const {
  const auto d = static_cast<size_t>(dim);
  Shape sizes = inputs[0].sizes();
  sizes[d] = 0;
  for (const Tensor& input : inputs) {
    Shape expected = sizes;
    CH_CHECK_EQ(input.ndim(), inputs[0].ndim())
        << "cat of " << inputs[0].Describe() << " and " << input.Describe();
    expected[d] = input.size(dim);
    CH_CHECK(input.sizes() == expected)
        << "cat along dim " << dim << " of " << inputs[0].Describe() << " and "
        << input.Describe();
    internal::CheckSameDType(kInfo.name, inputs[0], input);
    sizes[d] += input.size(dim);
  }
  Tensor out = Empty(sizes, inputs[0].dtype());
  int64_t start = 0;
  for (const Tensor& input : inputs) {
    internal::LaunchCopy(MakeView(out.storage(), start * out.strides()[d],
                                  input.sizes(), out.strides(), out.dtype()),
                         input);
    start += input.size(dim);
  }
  return {std::move(out)};
}

std::shared_ptr<Node> CatOp::Differentiate(TensorSpan inputs,
                                           TensorSpan /*outputs*/) const {
  Shape starts;
  int64_t start = 0;
  for (const Tensor& input : inputs) {
    starts.push_back(start);
    start += input.size(dim);
  }
  starts.push_back(start);
  return MakeNode<0>(kInfo, [dim = dim, starts](const auto&, TensorSpan grads,
                                                GradientSlots& slots) {
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      if (!slots.Needed(static_cast<int>(i))) continue;
      slots.Put(static_cast<int>(i),
                Slice(grads[0], dim, starts[i], starts[i + 1]));
    }
  });
}

Tensor Cat(TensorSpan tensors, int64_t dim) {
  CH_CHECK(!tensors.empty()) << "cat of no tensors";
  return Apply1(CatOp(NormalizeDim(dim, tensors[0].ndim(), "cat")), tensors);
}

Tensor Stack(TensorSpan tensors, int64_t dim) {
  CH_CHECK(!tensors.empty()) << "stack of no tensors";
  const int d = NormalizeDim(dim, tensors[0].ndim() + 1, "stack");
  TensorList unsqueezed;
  for (const Tensor& tensor : tensors) {
    CH_CHECK(tensor.sizes() == tensors[0].sizes())
        << "stack of " << tensors[0].Describe() << " and " << tensor.Describe();
    unsqueezed.push_back(Unsqueeze(tensor, d));
  }
  return Cat(unsqueezed, d);
}

Tensor Repeat(const Tensor& a, ShapeView times) {
  const int added = static_cast<int>(times.size()) - a.ndim();
  CH_CHECK(added >= 0 && std::all_of(times.begin(), times.end(),
                                     [](int64_t n) { return n >= 0; }))
      << "repeat of " << a.Describe() << " by " << ToString(times);
  Tensor repeated = a;
  for (int i = 0; i < added; ++i) repeated = Unsqueeze(repeated, 0);
  bool copied = false;
  for (int d = 0; d < static_cast<int>(times.size()); ++d) {
    if (times[d] == 1) continue;
    copied = true;
    repeated =
        times[d] == 0
            ? Slice(repeated, d, 0, 0)
            : Cat(TensorList(static_cast<size_t>(times[d]), repeated), d);
  }
  return copied ? repeated : Clone(repeated);
}

namespace {

// Returns the sum of `units`. Checks that there are units and that each is at
// least 1.
int64_t SumOfUnits(const char* op, ShapeView units) {
  int64_t sum = 0;
  for (int64_t unit : units) {
    CH_CHECK_GE(unit, 1) << op << " by units " << ToString(units);
    sum += unit;
  }
  CH_CHECK_GT(sum, 0) << op << " by no units";
  return sum;
}

Shape WithTwo(const Shape& sizes, int d, int64_t count, int64_t unit) {
  Shape two(sizes.begin(), sizes.begin() + d);
  two.push_back(count);
  two.push_back(unit);
  two.insert(two.end(), sizes.begin() + d + 1, sizes.end());
  return two;
}

Shape WithSize(Shape sizes, int d, int64_t size) {
  sizes[static_cast<size_t>(d)] = size;
  return sizes;
}

}  // namespace

TensorList Chunk(const Tensor& a, int64_t chunks, int64_t dim) {
  const int d = NormalizeDim(dim, a.ndim(), "chunk");
  CH_CHECK_GE(chunks, 1) << "chunk of " << a.Describe();
  const int64_t size = a.size(d);
  const int64_t each = (size + chunks - 1) / chunks;
  TensorList parts;
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t start = std::min(i * each, size);
    parts.push_back(Narrow(a, d, start, std::min(each, size - start)));
  }
  return parts;
}

TensorList Unbind(const Tensor& a, int64_t dim) {
  const int d = NormalizeDim(dim, a.ndim(), "unbind");
  TensorList parts;
  for (int64_t i = 0; i < a.size(d); ++i) parts.push_back(Select(a, d, i));
  return parts;
}

Tensor MergeUnits(TensorSpan parts, ShapeView units, int64_t dim) {
  for (const Tensor& part : parts) {
    CH_CHECK(part.defined()) << "merge_units of an undefined tensor";
  }
  CH_CHECK(!parts.empty() && parts.size() == units.size())
      << "merge_units of " << parts.size() << " parts by units "
      << ToString(units);
  const int64_t sum = SumOfUnits("merge_units", units);
  const int d = NormalizeDim(dim, parts[0].ndim(), "merge_units");
  const int64_t count = parts[0].size(d) / units[0];
  TensorList by_unit;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    CH_CHECK(part.ndim() == parts[0].ndim() && part.size(d) == count * units[i])
        << "merge_units along dim " << d << " by units " << ToString(units)
        << " of " << parts[0].Describe() << " and " << part.Describe();
    by_unit.push_back(View(part, WithTwo(part.sizes(), d, count, units[i])));
  }
  return View(Cat(by_unit, d + 1), WithSize(parts[0].sizes(), d, count * sum));
}

TensorList SplitUnits(const Tensor& a, ShapeView units, int64_t dim) {
  const int64_t sum = SumOfUnits("split_units", units);
  const int d = NormalizeDim(dim, a.ndim(), "split_units");
  const int64_t count = a.size(d) / sum;
  CH_CHECK_EQ(count * sum, a.size(d))
      << "split_units of dim " << d << " of " << a.Describe() << " by units "
      << ToString(units);
  const Tensor by_unit = View(a, WithTwo(a.sizes(), d, count, sum));
  TensorList parts;
  int64_t start = 0;
  for (int64_t unit : units) {
    parts.push_back(Reshape(Narrow(by_unit, d + 1, start, unit),
                            WithSize(a.sizes(), d, count * unit)));
    start += unit;
  }
  return parts;
}

TensorList Split(const Tensor& a, ShapeView sizes, int64_t dim) {
  const int d = NormalizeDim(dim, a.ndim(), "split");
  TensorList parts;
  int64_t start = 0;
  for (int64_t size : sizes) {
    parts.push_back(Narrow(a, d, start, size));
    start += size;
  }
  CH_CHECK_EQ(start, a.size(d)) << "split of dim " << d << " of "
                                << a.Describe() << " into " << ToString(sizes);
  return parts;
}

TensorList PadOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  const auto d = static_cast<size_t>(dim);
  Shape sizes = a.sizes();
  sizes[d] += before + after;
  Tensor out = Empty(sizes, a.dtype());
  // Each element is written once: the part before, a, the part after.
  const auto part = [&](int64_t start, int64_t length) {
    Shape part_sizes = sizes;
    part_sizes[d] = length;
    return MakeView(out.storage(), start * out.strides()[d],
                    std::move(part_sizes), out.strides(), out.dtype());
  };
  if (before > 0) internal::LaunchFill(part(0, before), 0);
  internal::LaunchCopy(part(before, a.sizes()[d]), a);
  if (after > 0) internal::LaunchFill(part(before + a.sizes()[d], after), 0);
  return {std::move(out)};
}

std::shared_ptr<Node> PadOp::Differentiate(TensorSpan inputs,
                                           TensorSpan /*outputs*/) const {
  return MakeNode(
      kInfo, [dim = dim, start = before, end = before + inputs[0].size(dim)](
                 const Tensor& g) { return Slice(g, dim, start, end); });
}

Tensor Pad(const Tensor& a, int64_t dim, int64_t before, int64_t after) {
  CH_CHECK(before >= 0 && after >= 0)
      << "pad of " << a.Describe() << " by " << before << " and " << after;
  return Apply1(PadOp(NormalizeDim(dim, a.ndim(), "pad"), before, after),
                {&a, 1});
}

}  // namespace crosshatch
