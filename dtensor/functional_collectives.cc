// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/functional_collectives.h"

#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/cast.h"

namespace crosshatch {
namespace {

void CheckArguments(const char* what, TensorSpan tensors,
                    const DeviceMesh& axis) {
  CH_CHECK(axis.ndim() == 1)
      << what << " over " << axis.ToString()
      << ", which has not one axis: Slice or Flatten gives such a mesh";
  CH_CHECK(axis.coordinate().has_value())
      << what << " on rank " << axis.world().world_rank()
      << ", which is not on " << axis.ToString();
  for (const Tensor& tensor : tensors) {
    CH_CHECK(!tensor.is_distributed())
        << what << " of " << tensor.Describe()
        << ": it takes plain tensors; ToLocal (dtensor/dtensor.h) gives this "
        << "rank's";
  }
}

// (x...) -> what rank - k has sent. The inputs have one dtype and are sent in
// one message: an all-to-all whose lists are empty except for two peers.
class ShiftOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"shift"};
  // \param received sizes, for each input.
  // \param equal_sizes whether the inputs of all ranks have equal sizes.
  ShiftOp(const DeviceMesh& axis, int64_t k, bool wrap, bool equal_sizes,
          std::vector<Shape> received)
      : axis(axis),
        k(k),
        wrap(wrap),
        equal_sizes(equal_sizes),
        received(std::move(received)) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const DeviceMesh axis;
  const int64_t k;
  const bool wrap;
  const bool equal_sizes;
  const std::vector<Shape> received;

 private:
  // Returns the rank `offset` after this one.
  std::optional<size_t> Peer(int64_t offset) const {
    const int64_t size = axis.size();
    const int64_t here = *axis.index(0);
    if (wrap) {
      return static_cast<size_t>(((here + offset % size) + size) % size);
    }
    // Without an overflow for any offset.
    if (offset < -here || offset >= size - here) return std::nullopt;
    return static_cast<size_t>(here + offset);
  }
};

class ShiftNode final : public Node {
 public:
  ShiftNode(const ShiftOp& op, TensorSpan inputs) : op_(op) {
    set_num_outputs(static_cast<int>(inputs.size()));
    dtype_ = inputs[0].dtype();
    for (const Tensor& input : inputs) {
      sizes_.push_back(input.sizes());
      requires_grad_.push_back(input.requires_grad());
    }
  }
  const char* name() const override { return ShiftOp::kInfo.name; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override;
  void ReleaseSaved() override {}

 private:
  const ShiftOp op_;
  DType dtype_;
  std::vector<Shape> sizes_;
  std::vector<bool> requires_grad_;
};

TensorList ShiftOp::Forward(TensorSpan inputs) const {
  const std::optional<size_t> to = Peer(k);
  const std::optional<size_t> from = Peer(-k);
  Collective collective;
  collective.kind = CollectiveKind::kAllToAll;
  collective.dtype = inputs[0].dtype();
  collective.label = absl::StrCat("shift by ", k, " of");
  collective.send.resize(static_cast<size_t>(axis.size()));
  collective.recv.resize(static_cast<size_t>(axis.size()));
  TensorList copies;
  TensorList outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor x = inputs[i];
    if (equal_sizes) {
      absl::StrAppend(&collective.label, i == 0 ? " " : ", ",
                      ToString(x.sizes()));
    }
    if (to.has_value()) {
      // A collective reads each element of memory once.
      if (Repeats(x.sizes(), x.strides())) {
        x = CloneOp().Forward({x})[0];
        copies.push_back(x);
      }
      AppendSegments(x, WholeBox(x.sizes()), collective.send[*to]);
    }
    if (from.has_value()) {
      outputs.push_back(Empty(received[i], x.dtype()));
      AppendSegments(outputs.back(), WholeBox(received[i]),
                     collective.recv[*from]);
    } else {
      outputs.push_back(Zeros(received[i], x.dtype()));
    }
  }
  if (!equal_sizes) {
    absl::StrAppend(&collective.label, " ", inputs.size(), " tensors");
  }
  const int axes[] = {0};
  IssueAlong(axes, axis, std::move(collective));
  return outputs;
}

std::shared_ptr<Node> ShiftOp::Differentiate(TensorSpan inputs,
                                             TensorSpan /*outputs*/) const {
  return std::make_shared<ShiftNode>(*this, inputs);
}

void ShiftNode::Backward(TensorSpan output_grads, GradientSlots& slots) {
  // Peers participate whether or not this rank has or needs each gradient.
  TensorList grads;
  std::vector<Shape> received;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (!requires_grad_[i]) continue;
    grads.push_back(output_grads[i].defined() ? output_grads[i]
                                              : Zeros(op_.received[i], dtype_));
    received.push_back(sizes_[i]);
  }
  const TensorList shifted = Apply(
      ShiftOp(op_.axis, -op_.k, op_.wrap, op_.equal_sizes, std::move(received)),
      grads);
  size_t next = 0;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (!requires_grad_[i]) continue;
    if (slots.Needed(static_cast<int>(i))) {
      slots.Put(static_cast<int>(i), shifted[next]);
    }
    ++next;
  }
}

}  // namespace

TensorList Shift(TensorSpan tensors, const DeviceMesh& axis, int64_t k,
                 const ShiftOptions& options) {
  CheckArguments("Shift", tensors, axis);
  const bool equal_sizes = options.receive_sizes.empty();
  CH_CHECK(equal_sizes || options.receive_sizes.size() == tensors.size())
      << "Shift of " << tensors.size() << " tensors with "
      << options.receive_sizes.size() << " receive_sizes";
  TensorList outputs(tensors.size());
  std::vector<bool> is_done(tensors.size());
  for (size_t first = 0; first < tensors.size(); ++first) {
    if (is_done[first]) continue;
    TensorList inputs;
    std::vector<size_t> places;
    std::vector<Shape> received;
    for (size_t i = first; i < tensors.size(); ++i) {
      if (tensors[i].dtype() != tensors[first].dtype()) continue;
      is_done[i] = true;
      places.push_back(i);
      inputs.push_back(tensors[i]);
      received.push_back(equal_sizes ? tensors[i].sizes()
                                     : options.receive_sizes[i]);
    }
    const TensorList shifted =
        Apply(ShiftOp(axis, k, options.wrap, equal_sizes, std::move(received)),
              inputs);
    for (size_t i = 0; i < places.size(); ++i) outputs[places[i]] = shifted[i];
  }
  return outputs;
}

Tensor Shift(const Tensor& x, const DeviceMesh& axis, int64_t k,
             const ShiftOptions& options) {
  return Shift(TensorSpan(&x, 1), axis, k, options)[0];
}

Tensor AllGather(const Tensor& x, const DeviceMesh& axis, int dim,
                 absl::Span<const int64_t> sizes) {
  CheckArguments("AllGather", {x}, axis);
  if (dim < 0) dim += x.ndim();
  CH_CHECK(dim >= 0 && dim < x.ndim())
      << "AllGather of " << x.Describe() << " along dim " << dim;
  const Layout whole = Layout::Replicated(axis.layout(), x.ndim());
  Layout parts = whole.WithShard(/*axis=*/0, dim);
  Shape global = x.sizes();
  global[dim] *= axis.size();
  if (!sizes.empty()) {
    CH_CHECK(static_cast<int>(sizes.size()) == axis.size() &&
             sizes[static_cast<size_t>(*axis.index(0))] == x.size(dim))
        << "AllGather of " << x.Describe() << " along dim " << dim << " over "
        << axis.ToString() << " on rank " << *axis.index(0)
        << " of the axis, with sizes "
        << ToString(Shape(sizes.begin(), sizes.end()));
    std::vector<int64_t> cuts(sizes.size());
    std::partial_sum(sizes.begin(), sizes.end(), cuts.begin());
    global[dim] = cuts.back();
    cuts.pop_back();
    parts = parts.WithCuts(dim, std::move(cuts));
  }
  return FullTensor(FromLocal(x, axis, parts, global, parts), {Partial()});
}

Tensor AllReduce(const Tensor& x, const DeviceMesh& axis) {
  CheckArguments("AllReduce", {x}, axis);
  return FullTensor(FromLocal(x, axis, {Partial()}, x.sizes(), {Replicate()}),
                    {Partial()});
}

}  // namespace crosshatch
