// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/module.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/mixture_of_experts.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Computes x * scale. A second parameter is unused.
class Scale final : public Module {
 public:
  explicit Scale(double scale, std::shared_ptr<Parameter> weight = nullptr)
      : scale_(scale),
        weight_(weight != nullptr
                    ? std::move(weight)
                    : std::make_shared<Parameter>(
                          Shape{2}, kFloat32,
                          Initializer{Initializer::Kind::kOnes})) {
    RegisterParameter("weight", weight_);
  }
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Mul(inputs[0], scale_)};
  }

 private:
  double scale_;
  std::shared_ptr<Parameter> weight_;
};

class Pair final : public Module {
 public:
  Pair() : second_(3, first_.weight()) {
    RegisterParameter("bias", bias_);
    RegisterModule("steps.0", first_);
    RegisterModule("steps.1", second_);
  }
  Scale& first() { return first_; }
  Scale& second() { return second_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {second_.Forward(first_.Forward(inputs[0]))};
  }

 private:
  std::shared_ptr<Parameter> bias_ = std::make_shared<Parameter>(
      Shape{1}, kFloat32, Initializer{Initializer::Kind::kZeros});
  Scale first_{2};
  Scale second_;
};

class Root final : public Module {
 public:
  Root() { RegisterModule("pair", pair_); }
  Pair& pair() { return pair_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {pair_.Forward(inputs[0])};
  }

 private:
  Pair pair_;
};

std::vector<std::string> Names(const std::vector<NamedModule>& modules) {
  std::vector<std::string> names;
  for (const NamedModule& module : modules) names.push_back(module.name);
  return names;
}
std::vector<std::string> Names(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const NamedParameter& entry : parameters) names.push_back(entry.name);
  return names;
}

float Value(const Tensor& t) { return t.ToVector<float>()[0]; }

TEST(ModuleTest, TreeIsWalkedDepthFirst) {
  Root root;
  EXPECT_THAT(Names(root.NamedModules()),
              ElementsAre("", "pair", "pair.steps.0", "pair.steps.1"));
  EXPECT_THAT(Names(root.pair().NamedModules()),
              ElementsAre("", "steps.0", "steps.1"));
  EXPECT_EQ(root.FullName(), "");
  EXPECT_EQ(root.pair().second().FullName(), "pair.steps.1");
}

TEST(ModuleTest, TiedParametersCountOnce) {
  Root root;
  EXPECT_THAT(Names(root.NamedParameters()),
              ElementsAre("pair.bias", "pair.steps.0.weight"));
  EXPECT_EQ(root.Parameters().size(), 2u);
  EXPECT_EQ(root.pair().first().weight(), root.pair().second().weight());
}

TEST(ModuleTest, FullNamesStartAtTheRoot) {
  Root root;
  EXPECT_THAT(Names(root.pair().second().NamedParameters()),
              ElementsAre("weight"));
  EXPECT_EQ(root.pair().second().weight()->name(), "pair.steps.0.weight");
}

TEST(ModuleTest, HooksRunInOrderAndReplace) {
  Root root;
  std::string log;
  const auto pre = [&](const char* name, double factor) {
    return [&log, name, factor](Module& module, TensorList& inputs) {
      log += std::string(name) + "(" + module.type_name() + ") ";
      inputs[0] = Mul(inputs[0], factor);
    };
  };
  const auto post = [&](const char* name, double addend) {
    return
        [&log, name, addend](Module&, TensorSpan inputs, TensorList& outputs) {
          log += std::string(name) + "[" +
                 std::to_string(static_cast<int>(Value(inputs[0]))) + "] ";
          outputs[0] = Add(outputs[0], addend);
        };
  };
  Pair& pair = root.pair();
  pair.AddPreHook(pre("b", 5));
  const int removed = pair.AddPreHook(pre("c", 100));
  pair.AddPreHook(pre("a", 7), /*first=*/true);
  pair.AddPostHook(post("y", 1));
  pair.AddPostHook(post("x", 1000), /*first=*/true);
  pair.RemoveHook(removed);
  // 1 * 7 * 5 = 35, * 2 * 3 = 210, + 1000 + 1
  EXPECT_EQ(Value(root.Forward(Full({1}, 1.0))), 1211.0f);
  EXPECT_EQ(log, "a(Pair) b(Pair) x[35] y[35] ");
}

TEST(ModuleTest, AHookMayAddAndRemoveHooksWhileItRuns) {
  Scale scale(2);
  int calls = 0;
  int id = -1;
  id = scale.AddPreHook([&](Module& module, TensorList&) {
    ++calls;
    module.RemoveHook(id);
    for (int i = 0; i < 8; ++i) {
      module.AddPreHook([&](Module&, TensorList&) { calls += 10; });
    }
  });
  const Tensor x = Full({1}, 1.0);
  scale.Forward(x);
  EXPECT_EQ(calls, 1);
  scale.Forward(x);
  EXPECT_EQ(calls, 81);
}

TEST(ModuleTest, KeepsAttachments) {
  struct Count final : Attachment {
    int value = 0;
  };
  Root root;
  EXPECT_EQ(root.attachment("fsdp"), nullptr);
  auto count = std::make_shared<Count>();
  root.Attach("fsdp", count);
  EXPECT_EQ(root.attachment("fsdp"), count.get());
  EXPECT_EQ(root.attachment("other"), nullptr);
  root.Attach("fsdp", nullptr);
  EXPECT_EQ(root.attachment("fsdp"), nullptr);
  EXPECT_EQ(count.use_count(), 1);
}

TEST(ModuleDeathTest, NamesAreUnique) {
  class Twice final : public Module {
   public:
    Twice() {
      RegisterModule("a", first_);
      RegisterModule("a", second_);
    }

   protected:
    TensorList ForwardImpl(TensorSpan) override { return {}; }

   private:
    Scale first_{1};
    Scale second_{1};
  };
  EXPECT_DEATH(Twice(),
               "module Twice has two children named \"a\", of the types "
               "Scale and Scale");
}

// Returns other numbers of tensors than its caller expects.
class Indexes final : public Module {
 public:
  Indexes(size_t input, size_t outputs) : input_(input), outputs_(outputs) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return TensorList(outputs_, inputs[input_]);
  }

 private:
  const size_t input_;
  const size_t outputs_;
};

class Calls final : public Module {
 public:
  explicit Calls(Module& inner) : inner_(inner) {
    RegisterModule("inner", inner);
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {inner_.Forward(inputs[0])};
  }

 private:
  Module& inner_;
};

TEST(ModuleDeathTest, NamesTheModulesAndTheCountsOfAWrongIndex) {
  const Tensor x = Ones({2});
  Indexes takes_two(1, 1);
  Calls parent(takes_two);
  EXPECT_DEATH(parent.Forward(x),
               "tensor \\[1\\] of a list of 1 tensor, in module Calls > module "
               "inner \\(Indexes\\)");
  EXPECT_DEATH(parent.Call({}),
               "\\[0\\] of a list of 0 tensors, in module Calls;");
  Indexes gives_two(0, 2);
  Calls of_pair(gives_two);
  EXPECT_DEATH(
      of_pair.Forward(x),
      "Forward of inner \\(Indexes\\): its ForwardImpl gives 2 outputs.*"
      "use Call");
  EXPECT_DEATH(gives_two.Call({x})[2], "\\[2\\] of a list of 2 tensors");
}

/// Creates its members in their declarations.
class Made final : public Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Mul(second_.Forward(first_.Forward(inputs[0])), weight_.Get())};
  }

 public:
  Scale& first_ = Make<Scale>("first", 2);
  Scale& second_ = Make<Scale>("second", 3, first_.weight());
  Parameter& weight_ = MakeParameter("weight", {1}, init::Constant(5));
  Buffer& table_ = MakeBuffer("table", {3}, init::ByElement([](const auto& e) {
                                return static_cast<double>(e.index[0]);
                              }));
  Buffer& count_ = MakeBuffer("count", {}, {}, kInt64, /*persistent=*/false);
};

TEST(ModuleTest, MakesAndRegistersInOne) {
  Made made;
  EXPECT_THAT(Names(made.NamedModules()), ElementsAre("", "first", "second"));
  EXPECT_THAT(Names(made.NamedParameters()),
              ElementsAre("weight", "first.weight"));
  ASSERT_TRUE(made.Materialize({}).ok());
  EXPECT_EQ(Value(made.Forward(Ones({1}))), 30);
}

TEST(ModuleTest, HasBuffers) {
  Made made;
  const std::vector<NamedBuffer> buffers = made.NamedBuffers();
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].name, "table");
  EXPECT_TRUE(buffers[0].buffer->persistent());
  EXPECT_EQ(buffers[0].buffer->name(), "table");
  EXPECT_FALSE(buffers[1].buffer->persistent());
  ASSERT_TRUE(made.Materialize({}).ok());
  EXPECT_THAT(made.table_.data().ToVector<float>(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(made.table_.data().requires_grad());
  EXPECT_EQ(made.count_.data().dtype(), kInt64);
  EXPECT_THAT(made.count_.data().ToVector<int64_t>(), ElementsAre(0));
  // Buffers are no parameters, so optimizers do not get them.
  EXPECT_EQ(made.Parameters().size(), 2u);
}

// Queries its names in its constructor.
class AsksForNames final : public Module {
 public:
  AsksForNames() { NamedParameters(); }
  Parameter& weight_ = MakeParameter("weight", {8}, init::Normal(1));

 protected:
  TensorList ForwardImpl(TensorSpan) override { return {}; }
};

class Open final : public Module {
 public:
  using Module::Make;
  using Module::RegisterModule;

 protected:
  TensorList ForwardImpl(TensorSpan) override { return {}; }
};

TEST(ModuleTest, NamesParametersAndBuffersAtOnce) {
  Made made;
  made.NamedParameters();
  EXPECT_EQ(made.table_.name(), "table");
  Open holder;
  holder.RegisterModule("net", made);
  holder.NamedParameters();
  EXPECT_EQ(made.weight_.name(), "net.weight");
  EXPECT_EQ(made.table_.name(), "net.table");
  EXPECT_EQ(holder.NamedBuffers()[0].name, "net.table");
  ASSERT_TRUE(holder.Materialize({}).ok());
  Open around;
  around.RegisterModule("net", holder);
  around.NamedParameters();
  EXPECT_EQ(made.weight_.name(), "net.weight");
}

TEST(ModuleTest, NamesAreFromTheRootWhoeverAskedInAConstructor) {
  Open root;
  const auto& a = root.Make<AsksForNames>("a");
  const auto& b = root.Make<AsksForNames>("b");
  ASSERT_TRUE(root.Materialize({.seed = 1}).ok());
  EXPECT_EQ(a.weight_.name(), "a.weight");
  EXPECT_EQ(b.weight_.name(), "b.weight");
  EXPECT_NE(a.weight_.data().ToVector<float>(),
            b.weight_.data().ToVector<float>());
}

TEST(ModuleTest, RefusesEqualNames) {
  AsksForNames first;
  ASSERT_TRUE(first.Materialize({.seed = 1}).ok());
  Open root;
  root.RegisterModule("first", first);
  // The first module keeps its name.
  AsksForNames second;
  root.RegisterModule("second", second);
  second.weight_.set_name("weight");
  const absl::Status status = root.Materialize({.seed = 1});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("two parameters are named weight"));
}

TEST(ModuleTest, RefusesToBeBelowItself) {
  Open a;
  Open b;
  Open c;
  EXPECT_DEATH(a.RegisterModule("self", a),
               "Open cannot have the child \"self\", which is the module "
               "itself");
  a.RegisterModule("b", b);
  b.RegisterModule("c", c);
  EXPECT_DEATH(c.RegisterModule("a", a),
               "b.c .Open. cannot have the child \"a\", which is Open and has "
               "it as \"b.c\"");
}

TEST(ModuleTest, APartThatOutlivesItsParentIsARoot) {
  AsksForNames part;
  {
    Open first;
    Open root;
    root.RegisterModule("first", first);
    first.RegisterModule("part", part);
    EXPECT_EQ(part.FullName(), "first.part");
  }
  EXPECT_EQ(part.parent(), nullptr);
  EXPECT_EQ(part.FullName(), "");
  ASSERT_TRUE(part.Materialize({.seed = 1}).ok());
  Open second;
  second.RegisterModule("other", part);
  EXPECT_EQ(*part.label(), "other (AsksForNames)");
}

TEST(ModuleTest, TrainingReachesAllBelow) {
  Root root;
  EXPECT_TRUE(root.pair().first().training());
  root.set_training(false);
  EXPECT_FALSE(root.training());
  EXPECT_FALSE(root.pair().second().training());
  root.pair().set_training(true);
  EXPECT_FALSE(root.training());
  EXPECT_TRUE(root.pair().second().training());
}

TEST(ModuleTest, VisitsChildrenBeforeParents) {
  Root root;
  std::vector<std::string> names;
  root.ForEachModule([&](Module& m) { names.push_back(m.FullName()); });
  EXPECT_THAT(names, ElementsAre("pair.steps.0", "pair.steps.1", "pair", ""));
}

TEST(ModuleTest, HasADTypeBeforeItHasMemory) {
  Made made;
  made.set_dtype(kBFloat16);
  ASSERT_TRUE(made.Materialize({}).ok());
  EXPECT_EQ(made.weight_.data().dtype(), kBFloat16);
  EXPECT_TRUE(made.weight_.data().requires_grad());
  EXPECT_EQ(made.first_.weight()->data().dtype(), kBFloat16);
  EXPECT_EQ(made.table_.data().dtype(), kBFloat16);
  EXPECT_EQ(made.count_.data().dtype(), kInt64);
}

class OfOptions final : public Module {
 public:
  OfOptions() {
    list_.Add({.in = 2, .out = 3});
    list_.Add(3, 2);
    chain_.Add<Linear>({.in = 2, .out = 7, .bias = true});
  }

  Embedding& table_ = Make<Embedding>("table", {.rows = 5, .dim = 2});
  Linear& by_name_ = Make<Linear>("by_name", {.in = 2, .out = 6, .bias = true});
  Linear& by_place_ = Make<Linear>("by_place", 2, 6);
  Linear& of_a_value_ =
      Make<Linear>("of_a_value", LinearOptions{.in = 4, .out = 1});
  MixtureOfExperts& experts_ =
      Make<MixtureOfExperts>("experts", {.dim = 2, .hidden = 3, .experts = 4});

 protected:
  TensorList ForwardImpl(TensorSpan) override { return {}; }

 private:
  ModuleList<Linear>& list_ = Make<ModuleList<Linear>>("list");
  Sequential& chain_ = Make<Sequential>("chain");
};

class Narrow final : public Module {
 public:
  explicit Narrow(int64_t width) : width_(width) {}

 protected:
  TensorList ForwardImpl(TensorSpan) override { return {}; }

 private:
  const int64_t width_;
  Linear& up_ = Make<Linear>("up", {.in = width_, .out = 3});
};

TEST(ModuleDeathTest, NamesTheModuleWhoseConstructionFails) {
  Narrow(1);
  EXPECT_DEATH(Narrow(0), HasSubstr("construction of module \"up\" of Narrow"));
}

TEST(ModuleTest, MakesModulesOfOptionsByTheirNames) {
  OfOptions made;
  std::map<std::string, Shape> sizes;
  for (const auto& [name, parameter] : made.NamedParameters()) {
    sizes[name] = parameter->data().sizes();
  }
  EXPECT_EQ(sizes["table.weight"], (Shape{5, 2}));
  EXPECT_EQ(sizes["by_name.weight"], (Shape{6, 2}));
  EXPECT_EQ(sizes["by_name.bias"], (Shape{6}));
  EXPECT_NE(made.by_name_.bias(), nullptr);
  EXPECT_EQ(sizes["by_place.weight"], (Shape{6, 2}));
  EXPECT_EQ(sizes["of_a_value.weight"], (Shape{1, 4}));
  EXPECT_EQ(sizes["experts.up_proj"], (Shape{4, 2, 3}));
  EXPECT_EQ(sizes["list.0.weight"], (Shape{3, 2}));
  EXPECT_EQ(sizes["list.1.weight"], (Shape{2, 3}));
  EXPECT_EQ(sizes["chain.0.bias"], (Shape{7}));
}

TEST(ModuleDeathTest, NamesSizesThatAreLeftOutOrGivenTwice) {
  EXPECT_DEATH(Linear({.out = 3}), "LinearOptions::in 0 and out 3");
  EXPECT_DEATH(Linear(2, 3, {.in = 2}), "give either");
  EXPECT_DEATH(Embedding({.rows = 3}), "EmbeddingOptions::rows 3 and dim 0");
}

TEST(ModuleDeathTest, RefusesChangesAfterMaterialize) {
  Made made;
  ASSERT_TRUE(made.Materialize({}).ok());
  EXPECT_DEATH(made.set_dtype(kBFloat16),
               "parameter weight .* as bf16: set the dtype before");
  EXPECT_DEATH(made.weight_.set_initializer(init::Constant(1)),
               "parameter weight .*which has its values already");
}

TEST(ModuleDeathTest, BuffersAndParametersShareNames) {
  class Twice final : public Module {
   public:
   protected:
    TensorList ForwardImpl(TensorSpan) override { return {}; }

   private:
    [[maybe_unused]] Buffer& buffer_ = MakeBuffer("a", {1}, {});
    [[maybe_unused]] Parameter& weight_ = MakeParameter("a", {1}, {});
  };
  EXPECT_DEATH(Twice(), "module Twice has a buffer named \"a\" already");
}

TEST(ParameterTest, HasTwoFaces) {
  Parameter parameter({2}, kFloat32, {Initializer::Kind::kOnes});
  EXPECT_TRUE(parameter.data().requires_grad());
  EXPECT_TRUE(parameter.Get().SameAs(parameter.data()));
  const Tensor gathered = Full({2}, 3.0);
  parameter.set_gathered(gathered);
  EXPECT_TRUE(parameter.Get().SameAs(gathered));
  EXPECT_FALSE(parameter.data().SameAs(gathered));
  parameter.set_gathered(Tensor());
  EXPECT_TRUE(parameter.Get().SameAs(parameter.data()));

  parameter.set_requires_grad(false);
  EXPECT_FALSE(parameter.data().requires_grad());
  parameter.set_data(Zeros({2}));
  EXPECT_FALSE(parameter.data().requires_grad());
  parameter.set_grad(Ones({2}));
  EXPECT_TRUE(parameter.grad().defined());
}

TEST(ParameterDeathTest, KeepsItsSizes) {
  Parameter parameter({2}, kFloat32, {Initializer::Kind::kOnes});
  EXPECT_DEATH(parameter.set_data(Zeros({3})), HasSubstr("f32[3]"));
}

}  // namespace
}  // namespace crosshatch::nn
