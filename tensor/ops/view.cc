// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/view.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {
namespace {

size_t Index(int64_t dim) { return static_cast<size_t>(dim); }

Tensor ViewOf(const Tensor& a, int64_t offset, Shape sizes, Shape strides) {
  return MakeView(a.storage(), offset, std::move(sizes), std::move(strides),
                  a.dtype());
}

/// Returns strides that give the elements of a strided tensor another shape in
/// the same order; nullopt if there are none. Both shapes have equally many
/// elements.
std::optional<Shape> ViewStrides(ShapeView from, ShapeView strides,
                                 ShapeView to) {
  if (NumElements(from) == 0 || from.empty()) return ContiguousStrides(to);
  Shape result(to.size(), 1);
  // From the last dim: a run of dims that folds into one stride of `from` must
  // be the product of a run of dims of `to`.
  auto t = static_cast<int64_t>(to.size()) - 1;
  int64_t base_stride = strides.back();
  int64_t from_numel = 1;
  int64_t to_numel = 1;
  for (auto f = static_cast<int64_t>(from.size()) - 1; f >= 0; --f) {
    from_numel *= from[Index(f)];
    const bool run_ends =
        f == 0 || (from[Index(f - 1)] != 1 &&
                   strides[Index(f - 1)] != from_numel * base_stride);
    if (!run_ends) continue;
    while (t >= 0 && (to_numel < from_numel || to[Index(t)] == 1)) {
      result[Index(t)] = to_numel * base_stride;
      to_numel *= to[Index(t)];
      --t;
    }
    if (to_numel != from_numel) return std::nullopt;
    if (f > 0) {
      base_stride = strides[Index(f - 1)];
      from_numel = 1;
      to_numel = 1;
    }
  }
  if (t >= 0) return std::nullopt;
  return result;
}

/// Returns `sizes` with -1 replaced by the remaining number of elements.
Shape InferSizes(const char* op, const Tensor& a, ShapeView sizes) {
  Shape result(sizes.begin(), sizes.end());
  int64_t known = 1;
  int64_t* inferred = nullptr;
  for (int64_t& size : result) {
    if (size != -1) {
      known *= size;
    } else {
      CH_CHECK(inferred == nullptr) << op << " of " << a.Describe() << " as "
                                    << ToString(sizes) << ": one -1 at most";
      inferred = &size;
    }
  }
  if (inferred != nullptr && known > 0) *inferred = a.numel() / known;
  CH_CHECK(NumElements(result) == a.numel() &&
           std::all_of(result.begin(), result.end(),
                       [](int64_t size) { return size >= 0; }))
      << op << " of " << a.Describe() << " as " << ToString(sizes)
      << ": another number of elements";
  return result;
}

/// (a) -> a view with the given strides into the memory of a contiguous tensor.
/// Internal: graph histories of views consist of it.
class AsStridedOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "as_strided", .view = true, .view_history = &kStridedViewHistory};
  AsStridedOp(int64_t offset, ShapeView sizes, ShapeView strides)
      : offset_(offset),
        sizes_(sizes.begin(), sizes.end()),
        strides_(strides.begin(), strides.end()) {}
  /// Describes `view` in the memory of `base`.
  static AsStridedOp Of(const Tensor& base, const Tensor& view) {
    CH_CHECK(base.is_contiguous())
        << "a write in place through a view of a tensor that is not "
           "contiguous, "
        << base.Describe() << ", cannot be differentiated";
    return AsStridedOp(view.storage_offset() - base.storage_offset(),
                       view.sizes(), view.strides());
  }

  const OpInfo& info() const override { return kInfo; }
  std::optional<Shape> AliasStrides(const Tensor& /*input*/,
                                    ShapeView /*strides*/) const override {
    return strides_;
  }
  TensorList Forward(TensorSpan inputs) const override {
    return {ViewOf(inputs[0], inputs[0].storage_offset() + offset_, sizes_,
                   strides_)};
  }
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan /*outputs*/) const override {
    return MakeNode(kInfo,
                    [op = *this, sizes = inputs[0].sizes()](const Tensor& g) {
                      return op.Scatter(g, sizes);
                    });
  }

 private:
  Tensor Scatter(const Tensor& grad, ShapeView sizes) const {
    // An expanded dim is one element, whose gradients add up.
    Shape repeated;
    Shape distinct = sizes_;
    for (size_t d = 0; d < sizes_.size(); ++d) {
      if (strides_[d] != 0 || sizes_[d] <= 1) continue;
      repeated.push_back(static_cast<int64_t>(d));
      distinct[d] = 1;
    }
    Tensor result = Zeros(sizes, grad.dtype());
    CopyInPlace(
        Apply1(AsStridedOp(offset_, distinct, strides_), {&result, 1}),
        repeated.empty() ? grad : Sum(grad, repeated, /*keepdim=*/true));
    return result;
  }

  int64_t offset_;
  Shape sizes_;
  Shape strides_;
};

/// Differentiates a write through a view, using the write's node.
class WriteThroughViewNode final : public Node {
 public:
  WriteThroughViewNode(AsStridedOp view, std::shared_ptr<Node> write)
      : view_(std::move(view)), write_(std::move(write)) {}

  const char* name() const override { return write_->name(); }
  void ReleaseSaved() override { write_->ReleaseSaved(); }

  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    // The gradient of the base before the write is that after it, with the
    // written part replaced.
    const Tensor base = Clone(output_grads[0]);
    const Tensor part = Apply1(view_, {&base, 1});
    WriteSlots write_slots(slots);
    // A copy, because the write's node may pass on its input itself.
    const Tensor part_grad = Clone(part);
    write_->Backward({&part_grad, 1}, write_slots);
    if (!slots.Needed(0)) return;
    if (write_slots.old_part().defined()) {
      CopyInPlace(part, write_slots.old_part());
    } else {
      ZeroInPlace(part);
    }
    slots.Put(0, base);
  }

 private:
  /// Keeps the gradient of input 0 and forwards the others.
  class WriteSlots final : public GradientSlots {
   public:
    explicit WriteSlots(GradientSlots& outer) : outer_(outer) {}
    const Tensor& old_part() const { return old_part_; }

    bool Needed(int i) const override { return outer_.Needed(i); }
    const GradDestination* Destination(int i) override {
      return i == 0 ? nullptr : outer_.Destination(i);
    }
    void MarkWritten(int i) override { outer_.MarkWritten(i); }
    void Put(int i, Tensor gradient) override {
      if (i == 0) {
        old_part_ = std::move(gradient);
      } else {
        outer_.Put(i, std::move(gradient));
      }
    }

   private:
    GradientSlots& outer_;
    Tensor old_part_;
  };

  const AsStridedOp view_;
  const std::shared_ptr<Node> write_;
};

}  // namespace

const ViewHistory kStridedViewHistory = {
    .of_view =
        [](const Tensor& base, const Tensor& view) {
          return AsStridedOp::Of(base, view)
              .Differentiate({&base, 1}, {&view, 1});
        },
    .of_write = [](const Tensor& base, const Tensor& view,
                   std::shared_ptr<Node> write) -> std::shared_ptr<Node> {
      return std::make_shared<WriteThroughViewNode>(AsStridedOp::Of(base, view),
                                                    std::move(write));
    },
};

TensorList ViewOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  CH_CHECK(NumElements(sizes) == a.numel())
      << "view of " << a.Describe() << " as " << ToString(sizes)
      << ": another number of elements";
  std::optional<Shape> strides = AliasStrides(a, a.strides());
  if (strides.has_value()) {
    return {ViewOf(a, a.storage_offset(), sizes, *std::move(strides))};
  }
  CH_CHECK(may_copy) << "view of " << a.Describe() << " with strides "
                     << ToString(a.strides()) << " as " << ToString(sizes)
                     << ": its strides do not allow it; use Reshape";
  const Tensor copy = internal::Dense(a);
  return {ViewOf(copy, copy.storage_offset(), sizes, ContiguousStrides(sizes))};
}

std::optional<Shape> ViewOp::AliasStrides(const Tensor& input,
                                          ShapeView strides) const {
  return ViewStrides(input.sizes(), strides, sizes);
}

std::shared_ptr<Node> ViewOp::Differentiate(TensorSpan inputs,
                                            TensorSpan /*outputs*/) const {
  return MakeNode(kInfo, [sizes = inputs[0].sizes()](const Tensor& g) {
    return Reshape(g, sizes);
  });
}

TensorList PermuteOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  Shape sizes;
  for (int64_t dim : dims) sizes.push_back(a.sizes()[Index(dim)]);
  return {ViewOf(a, a.storage_offset(), std::move(sizes),
                 *AliasStrides(a, a.strides()))};
}

std::optional<Shape> PermuteOp::AliasStrides(const Tensor& /*input*/,
                                             ShapeView strides) const {
  Shape result;
  for (int64_t dim : dims) result.push_back(strides[Index(dim)]);
  return result;
}

std::shared_ptr<Node> PermuteOp::Differentiate(TensorSpan /*inputs*/,
                                               TensorSpan /*outputs*/) const {
  Shape inverse(dims.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    inverse[Index(dims[i])] = static_cast<int64_t>(i);
  }
  return MakeNode(kInfo,
                  [inverse](const Tensor& g) { return Permute(g, inverse); });
}

TensorList SliceOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  CH_CHECK(0 <= start && start <= end && end <= a.size(dim))
      << "slice [" << start << ", " << end << ") of dim " << dim << " of "
      << a.Describe();
  Shape sizes = a.sizes();
  sizes[Index(dim)] = end - start;
  return {ViewOf(a, a.storage_offset() + start * a.strides()[Index(dim)],
                 std::move(sizes), a.strides())};
}

std::optional<Shape> SliceOp::AliasStrides(const Tensor& /*input*/,
                                           ShapeView strides) const {
  return Shape(strides.begin(), strides.end());
}

std::shared_ptr<Node> SliceOp::Differentiate(TensorSpan inputs,
                                             TensorSpan /*outputs*/) const {
  return MakeNode(
      kInfo, [dim = dim, before = start, after = inputs[0].size(dim) - end](
                 const Tensor& g) { return Pad(g, dim, before, after); });
}

TensorList ExpandOp::Forward(TensorSpan inputs) const {
  const Tensor& a = inputs[0];
  CH_CHECK_GE(sizes.size(), a.sizes().size())
      << "expand of " << a.Describe() << " to " << ToString(sizes);
  const size_t lead = sizes.size() - a.sizes().size();
  for (size_t i = 0; i < a.sizes().size(); ++i) {
    const int64_t size = a.sizes()[i];
    CH_CHECK(size == sizes[lead + i] || size == 1)
        << "expand of " << a.Describe() << " to " << ToString(sizes);
  }
  return {ViewOf(a, a.storage_offset(), sizes, *AliasStrides(a, a.strides()))};
}

std::optional<Shape> ExpandOp::AliasStrides(const Tensor& input,
                                            ShapeView strides) const {
  const size_t lead = sizes.size() - strides.size();
  Shape result(sizes.size(), 0);
  for (size_t i = 0; i < strides.size(); ++i) {
    if (input.sizes()[i] == sizes[lead + i]) result[lead + i] = strides[i];
  }
  return result;
}

std::shared_ptr<Node> ExpandOp::Differentiate(TensorSpan inputs,
                                              TensorSpan /*outputs*/) const {
  return MakeNode(kInfo, [sizes = inputs[0].sizes()](const Tensor& g) {
    return SumTo(g, sizes);
  });
}

Tensor View(const Tensor& a, ShapeView sizes) {
  return Apply1(ViewOp(InferSizes("view", a, sizes), /*may_copy=*/false,
                       RankContext::Current().in_backward()),
                {&a, 1});
}

Tensor Reshape(const Tensor& a, ShapeView sizes) {
  return Apply1(ViewOp(InferSizes("reshape", a, sizes), /*may_copy=*/true,
                       RankContext::Current().in_backward()),
                {&a, 1});
}

Tensor Flatten(const Tensor& a, int64_t first, int64_t last) {
  if (a.ndim() == 0) return Reshape(a, {1});
  const int begin = NormalizeDim(first, a.ndim(), "flatten");
  const int end = NormalizeDim(last, a.ndim(), "flatten");
  CH_CHECK_LE(begin, end) << "flatten of " << a.Describe();
  Shape sizes(a.sizes().begin(), a.sizes().begin() + begin);
  int64_t folded = 1;
  for (int d = begin; d <= end; ++d) folded *= a.size(d);
  sizes.push_back(folded);
  sizes.insert(sizes.end(), a.sizes().begin() + end + 1, a.sizes().end());
  return Reshape(a, sizes);
}

Tensor Unflatten(const Tensor& a, int64_t dim, ShapeView sizes) {
  const int d = NormalizeDim(dim, a.ndim(), "unflatten");
  const int64_t size = a.size(d);
  Shape split(sizes.begin(), sizes.end());
  const auto left = std::find(split.begin(), split.end(), -1);
  if (left != split.end()) {
    *left = 1;
    const int64_t others = NumElements(split);
    *left = others == 0 ? 0 : size / others;
  }
  CH_CHECK(std::all_of(split.begin(), split.end(),
                       [](int64_t n) { return n >= 0; }) &&
           NumElements(split) == size)
      << "unflatten of dim " << d << " of " << a.Describe() << " into "
      << ToString(sizes);
  Shape whole(a.sizes().begin(), a.sizes().begin() + d);
  whole.insert(whole.end(), split.begin(), split.end());
  whole.insert(whole.end(), a.sizes().begin() + d + 1, a.sizes().end());
  return View(a, whole);
}

Tensor Squeeze(const Tensor& a, int64_t dim) {
  const int d = NormalizeDim(dim, a.ndim(), "squeeze");
  CH_CHECK_EQ(a.size(d), 1) << "squeeze of dim " << d << " of " << a.Describe();
  Shape sizes = a.sizes();
  sizes.erase(sizes.begin() + d);
  return View(a, sizes);
}

Tensor Unsqueeze(const Tensor& a, int64_t dim) {
  const int d = NormalizeDim(dim, a.ndim() + 1, "unsqueeze");
  Shape sizes = a.sizes();
  sizes.insert(sizes.begin() + d, 1);
  return View(a, sizes);
}

Tensor Transpose(const Tensor& a, int64_t dim0, int64_t dim1) {
  Shape dims(a.sizes().size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  std::swap(dims[Index(NormalizeDim(dim0, a.ndim(), "transpose"))],
            dims[Index(NormalizeDim(dim1, a.ndim(), "transpose"))]);
  return Apply1(PermuteOp(dims), {&a, 1});
}

Tensor Permute(const Tensor& a, ShapeView dims) {
  CH_CHECK_EQ(dims.size(), a.sizes().size())
      << "permute of " << a.Describe() << " by " << ToString(dims);
  Shape normal;
  Shape seen(dims.size(), 0);
  for (int64_t dim : dims) {
    const int d = NormalizeDim(dim, a.ndim(), "permute");
    CH_CHECK(seen[Index(d)] == 0) << "permute of " << a.Describe() << " by "
                                  << ToString(dims) << ": a dim twice";
    seen[Index(d)] = 1;
    normal.push_back(d);
  }
  return Apply1(PermuteOp(normal), {&a, 1});
}

Tensor MoveDim(const Tensor& a, int64_t from, int64_t to) {
  const int source = NormalizeDim(from, a.ndim(), "move_dim");
  const int destination = NormalizeDim(to, a.ndim(), "move_dim");
  Shape dims;
  for (int d = 0; d < a.ndim(); ++d) {
    if (d != source) dims.push_back(d);
  }
  dims.insert(dims.begin() + destination, source);
  return Permute(a, dims);
}

Tensor Slice(const Tensor& a, int64_t dim, int64_t start, int64_t end) {
  const int d = NormalizeDim(dim, a.ndim(), "slice");
  const int64_t size = a.size(d);
  const auto clamp = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
  };
  const int64_t from = clamp(start);
  return Apply1(SliceOp(d, from, std::max(from, clamp(end))), {&a, 1});
}

Tensor Narrow(const Tensor& a, int64_t dim, int64_t start, int64_t length) {
  const int d = NormalizeDim(dim, a.ndim(), "narrow");
  CH_CHECK(start >= 0 && length >= 0 && start + length <= a.size(d))
      << "narrow of dim " << d << " of " << a.Describe() << " to " << length
      << " elements from " << start << " on";
  return Apply1(SliceOp(d, start, start + length), {&a, 1});
}

Tensor Select(const Tensor& a, int64_t dim, int64_t index) {
  const int d = NormalizeDim(dim, a.ndim(), "select");
  const int64_t i = index < 0 ? index + a.size(d) : index;
  CH_CHECK(0 <= i && i < a.size(d))
      << "select of " << index << " in dim " << d << " of " << a.Describe();
  return Squeeze(Narrow(a, d, i, 1), d);
}

Tensor Expand(const Tensor& a, ShapeView sizes) {
  CH_CHECK_GE(sizes.size(), a.sizes().size())
      << "expand of " << a.Describe() << " to " << ToString(sizes);
  Shape full(sizes.begin(), sizes.end());
  const size_t lead = full.size() - a.sizes().size();
  for (size_t i = lead; i < full.size(); ++i) {
    if (full[i] == -1) full[i] = a.sizes()[i - lead];
  }
  return Apply1(ExpandOp(full), {&a, 1});
}

Tensor Tensor::operator[](const DimIndex& index) const {
  return (*this)[std::initializer_list<DimIndex>{index}];
}

Tensor Tensor::operator[](std::initializer_list<DimIndex> indices) const {
  CH_CHECK(defined()) << "[] of an undefined tensor";
  CH_CHECK_LE(static_cast<int>(indices.size()), ndim())
      << indices.size() << " indices of " << Describe();
  Tensor result = *this;
  int64_t dim = 0;
  for (const DimIndex& index : indices) {
    if (index.takes_one()) {
      result = Select(result, dim, index.element());
    } else {
      result = Slice(result, dim, index.range().start, index.range().end);
      ++dim;
    }
  }
  return result;
}

}  // namespace crosshatch
