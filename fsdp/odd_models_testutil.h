// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_ODD_MODELS_TESTUTIL_H_
#define CROSSHATCH_FSDP_ODD_MODELS_TESTUTIL_H_

/// \file
/// Models with frozen, tied and unused parameters and small integer weights
/// (testutil.h).

#include <cstdint>
#include <functional>
#include <utility>

#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"

namespace crosshatch::fsdp {

/// Computes frozen last frozen first frozen x: the same frozen layer between
/// trained ones.
class Adapter final : public nn::Module {
 public:
  Adapter() : first_(5, 5), frozen_(5, 5), last_(5, 5) {
    RegisterModule("first", first_);
    RegisterModule("frozen", frozen_);
    RegisterModule("last", last_);
    first_.weight()->set_data(SmallIntegers({5, 5}, 4));
    frozen_.weight()->set_data(SmallIntegers({5, 5}, 5));
    last_.weight()->set_data(SmallIntegers({5, 5}, 6));
    frozen_.weight()->set_requires_grad(false);
  }
  const char* type_name() const override { return "Adapter"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {frozen_.Forward(last_.Forward(
        frozen_.Forward(first_.Forward(frozen_.Forward(inputs[0])))))};
  }

 private:
  nn::Linear first_, frozen_, last_;
};

/// Two adapters, each of which runs twice, one of them on its own output.
class Adapters final : public nn::Module {
 public:
  Adapters() {
    RegisterModule("a", a);
    RegisterModule("b", b);
    NamedParameters();
  }
  const char* type_name() const override { return "Adapters"; }
  Adapter a, b;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor x = a.Forward(inputs[0]);
    return {Add(b.Forward(b.Forward(x)), a.Forward(x))};
  }
};

/// A chain of Linears [5, 5], in which the first and last share their weight.
class Tied final : public nn::Module {
 public:
  Tied() : first(5, 5), middle(5, 5), last(first.weight()) {
    RegisterModule("first", first);
    RegisterModule("middle", middle);
    RegisterModule("last", last);
    int64_t salt = 3;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers({5, 5}, ++salt));
    }
  }
  const char* type_name() const override { return "Tied"; }
  nn::Linear first, middle, last;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {last.Forward(middle.Forward(first.Forward(inputs[0])))};
  }
};

/// Looks up tokens in an embedding, then runs a block.
class Lookup final : public nn::Module {
 public:
  Lookup() : embedding(7, 5), block(5, 7) {
    RegisterModule("embedding", embedding);
    RegisterModule("block", block);
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 3));
    }
  }
  const char* type_name() const override { return "Lookup"; }
  nn::Embedding embedding;
  TestBlock block;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {block.Forward(embedding.Forward(inputs[0]))};
  }
};

/// How a forward of Conditional uses its second branch.
enum class BranchUse : uint8_t { kUsed, kDropped, kSkipped };

/// Computes x + a x, or with the second branch x + b x + a (x + b x). The
/// second branch runs before `a`, though it is registered after it.
class Conditional final : public nn::Module {
 public:
  /// \param use called by each forward.
  explicit Conditional(std::function<BranchUse()> use)
      : a(5, 5), b(5, 5), use_(std::move(use)) {
    RegisterModule("a", a);
    RegisterModule("b", b);
    int64_t salt = 3;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers({5, 5}, ++salt));
    }
  }
  const char* type_name() const override { return "Conditional"; }
  nn::Linear a, b;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    const BranchUse use = use_();
    if (use != BranchUse::kSkipped) {
      const Tensor y = b.Forward(x);
      if (use == BranchUse::kUsed) x = Add(x, y);
    }
    return {Add(x, a.Forward(x))};
  }

 private:
  const std::function<BranchUse()> use_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ODD_MODELS_TESTUTIL_H_
