// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/op.h"

#include <string>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/span.h"

namespace crosshatch {

std::shared_ptr<Node> Op::Differentiate(TensorSpan /*inputs*/,
                                        TensorSpan outputs) const {
  CH_CHECK(info().no_gradient == nullptr)
      << info().name << " is not differentiable: " << info().no_gradient;
  for (const Tensor& output : outputs) {
    CH_CHECK(!output.defined() || !IsFloatingPoint(output.dtype()))
        << "op " << info().name
        << " has no gradient, and an input of it requires one; override "
           "Differentiate (to return null if the outputs are constants to "
           "autograd), or call it in NoGrad";
  }
  return nullptr;
}

void Op::AppendKey(OpKey& /*key*/) const {}

std::optional<Shape> Op::AliasStrides(const Tensor& /*input*/,
                                      ShapeView /*strides*/) const {
  return std::nullopt;
}

namespace {

/// Returns whether `output` 0 of a call shares memory with `input` 0.
bool Aliases(const Tensor& output, const Tensor& input, bool view) {
  if (output.is_distributed()) return output.handler()->is_alias();
  return view &&
         (input.is_distributed() || output.storage() == input.storage());
}

/// Adds the op, with global sizes, to a failed check.
class OpContext final : public ErrorContext {
 public:
  OpContext(const OpInfo& info, TensorSpan inputs)
      : ErrorContext(Kind::kOp), info_(info), inputs_(inputs) {}

  std::string Describe() const override {
    std::string text = std::string("op ") + info_.name;
    const char* separator = " of ";
    for (const Tensor& input : inputs_) {
      text += separator + input.Describe();
      separator = ", ";
    }
    return text;
  }
  const char* op_name() const override { return info_.name; }

 private:
  const OpInfo& info_;
  const TensorSpan inputs_;
};

TensorList Run(const Op& op, const TensorHandler* handler, TensorSpan inputs) {
  return handler != nullptr ? handler->Dispatch(op, inputs)
                            : op.Forward(inputs);
}

/// Runs the op as a span of the current stream.
TensorList RunTraced(const Op& op, const TensorHandler* handler,
                     TensorSpan inputs, RankContext& context) {
  Stream& stream = context.current_stream();
  const std::string name = op.info().name;
  BeginSpan(stream, "op", name);
  TensorList outputs = Run(op, handler, inputs);
  EndSpan(stream, "op", name);
  return outputs;
}

}  // namespace

TensorList Apply(const Op& op, TensorSpan inputs) {
  const OpInfo& info = op.info();
  const OpContext running(info, inputs);
  RankContext& context = RankContext::Current();
  const bool grad_mode = context.grad_enabled();
  const TensorHandler* handler = nullptr;
  bool record = false;
  for (const Tensor& input : inputs) {
    if (!input.defined()) {
      const auto index = static_cast<size_t>(&input - inputs.data());
      CH_CHECK(index < 32 && (info.optional_inputs >> index & 1) != 0)
          << info.name << ": input " << index << " of " << inputs.size()
          << " is undefined: nothing was assigned to it, or it was moved from";
      continue;
    }
    if (handler == nullptr) handler = input.handler().get();
    if (grad_mode && !record) record = input.requires_grad();
  }

  // The history of a written tensor must be read before the write.
  absl::InlinedVector<Node::Edge, 3> edges;
  const auto tie_edges = [&] {
    edges.reserve(inputs.size());
    for (const Tensor& input : inputs) {
      edges.push_back(input.defined() ? GradEdge(input) : Node::Edge());
    }
  };
  if (info.in_place && grad_mode) {
    GraphTies::CheckWritable(info.name, inputs[0], record);
    if (record) tie_edges();
  }

  TensorList outputs = context.sink() == nullptr
                           ? Run(op, handler, inputs)
                           : RunTraced(op, handler, inputs, context);
  // Each output of a call has its own position in the graph.
  if (!info.in_place && outputs[0].SameAs(inputs[0])) {
    outputs[0] = outputs[0].Detach();
  }
  if (!grad_mode) return outputs;

  if (record) {
    std::shared_ptr<Node> node = op.Differentiate(inputs, outputs);
    if (node != nullptr) {
      if (!info.in_place) tie_edges();
      node->edges() = std::move(edges);
      if (info.in_place) {
        GraphTies::TieWrite(node, inputs[0]);
      } else {
        GraphTies::TieOutputs(node, outputs);
      }
    }
  }
  // Recorded even if nothing requires a gradient, because a write through the
  // view may make its base require one.
  if (!info.in_place && Aliases(outputs[0], inputs[0], info.view)) {
    GraphTies::TieView(info.view_history, inputs[0], outputs[0]);
  }
  return outputs;
}

Tensor Apply1(const Op& op, TensorSpan inputs) {
  return std::move(Apply(op, inputs)[0]);
}

}  // namespace crosshatch
