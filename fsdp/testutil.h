// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_TESTUTIL_H_
#define CROSSHATCH_FSDP_TESTUTIL_H_

/// \file
/// A model for tests with exact arithmetic (testing/batch.h), so that results
/// of a mesh and of one rank are bitwise equal.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"

namespace crosshatch::fsdp {

/// Computes x + down(relu(up(x))).
class TestBlock final : public nn::Module {
 public:
  TestBlock(int64_t dim, int64_t inner)
      : up_(dim, inner, {.bias = true}), down_(inner, dim, {.bias = true}) {
    RegisterModule("up", up_);
    RegisterModule("down", down_);
  }
  const char* type_name() const override { return "TestBlock"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Add(inputs[0], down_.Forward(Relu(up_.Forward(inputs[0]))))};
  }

 private:
  nn::Linear up_;
  nn::Linear down_;
};

/// Runs all blocks in order, `repeats` times, then a Linear [out, dim].
class TestModel final : public nn::Module {
 public:
  TestModel(int blocks, int64_t dim, int64_t inner, int64_t out,
            int repeats = 1)
      : repeats_(repeats), head_(dim, out, {.bias = true}) {
    for (int i = 0; i < blocks; ++i) {
      blocks_.push_back(std::make_unique<TestBlock>(dim, inner));
      RegisterModule(absl::StrCat("blocks.", i), *blocks_.back());
    }
    RegisterModule("head", head_);
    NamedParameters();
  }
  const char* type_name() const override { return "TestModel"; }

  std::vector<std::unique_ptr<TestBlock>>& blocks() { return blocks_; }

  /// Sets every parameter to a plain tensor of small integers.
  void FillWithIntegers() {
    int64_t salt = 0;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    for (int i = 0; i < repeats_; ++i) {
      for (auto& block : blocks_) x = block->Forward(x);
    }
    return {head_.Forward(x)};
  }

 private:
  const int repeats_;
  std::vector<std::unique_ptr<TestBlock>> blocks_;
  nn::Linear head_;
};

/// Keeps events of one kind as lines "what subject".
class LineSink final : public EventSink {
 public:
  explicit LineSink(EventKind kind) : kind_(kind) {}
  void Write(const LogEvent& event) override {
    if (event.kind != kind_) return;
    lines_.push_back(absl::StrCat(event.what, " ", *event.subject));
  }
  std::vector<std::string> Take() { return std::exchange(lines_, {}); }

 private:
  const EventKind kind_;
  std::vector<std::string> lines_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_TESTUTIL_H_
