// SPDX-License-Identifier: Apache-2.0

/// \file
/// Every two options of FSDP in every pair of their values, on every mesh:
/// training gives the losses and weights of one rank.
///
/// Weights and inputs are small integers, so that sums are exact in every dtype
/// and order. With weights and inputs of -1, 0 and 1 the largest number that
/// can appear in a forward of this model is 127, and in the gradient that a
/// rank computes of a row 84; the rows of a rank and the scale of its loss
/// leave that below 256, where bfloat16 holds every integer. The one thing that
/// may round is a division by 3: by 2^-24 of the gradient for each backward.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tests/covering_array.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using fsdp::Configure;
using fsdp::FullyShardOptions;
using fsdp::Settings;
using fsdp::ShardedModule;

constexpr int kSteps = 5;
constexpr int64_t kDim = 3;
constexpr int64_t kHidden = 4;

enum Option {
  kMesh,
  kReshard,
  kForwardPrefetch,
  kBackwardPrefetch,
  kPrefetchBytes,
  kReduceBuffers,
  kParamDtype,
  kOverride,
  kReduceDtype,
  kOutputDtype,
  kCastInputs,
  kDivideFactor,
  kForceSum,
  kShardDim,
  kExtension,
  kOffset,
  kTied,
  kUnused,
  kAccumulation,
  kAfterBackward,
  kKeepUnsharded,
  kByHand,
  kCheckpoint,
  kOffload,
  kInnerForm,
  kPrefetchLists,
  kOptimizerEvent,
  kCustomComm,
  kReshardLate,
  kStreams,
};

const std::vector<TestedOption>& TestedOptions() {
  static const std::vector<TestedOption> options = {
      {"mesh",
       {"fsdp:2", "fsdp:3", "fsdp:4", "replicate:2,fsdp:2", "fsdp:2,tp:2",
        "replicate:2,fsdp:2,tp:2", "replicate:2,fsdp:4", "fsdp:4,tp:2"}},
      {"reshard", {"by default", "always", "never", "to two ranks"}},
      {"forward prefetch", {"1", "0", "2"}},
      {"backward prefetch", {"1", "0", "2"}},
      {"prefetch bytes", {"unset", "100"}},
      {"reduce buffers", {"1", "3"}},
      {"param dtype", {"unset", "f64", "bf16"}},
      {"override", {"none", "f32 offset"}},
      {"reduce dtype", {"unset", "f64", "f16"}},
      {"output dtype", {"unset", "f64"}},
      {"cast inputs", {"yes", "no"}},
      {"divide factor", {"unset", "1", "2"}},
      {"force sum", {"no", "yes"}},
      {"shard dim", {"0", "-1"}},
      {"extension", {"DTensor", "none"}},
      {"offset", {"trained", "frozen", "ignored"}},
      {"tied", {"no", "across groups"}},
      {"unused", {"none", "one", "one, reduced"}},
      {"accumulation",
       {"none", "sharded", "unsharded", "before replicas", "last backward",
        "by hand"}},
      {"after backward", {"reshard", "keep"}},
      {"keep unsharded", {"no", "yes"}},
      {"unshard", {"by hooks", "by hand"}},
      {"checkpoint", {"nothing", "the inner module", "the middle one"}},
      {"offload", {"no", "yes"}},
      {"inner module", {"sharded", "a list of two", "replicated"}},
      {"prefetch lists", {"none", "set"}},
      {"optimizer event", {"none", "set"}},
      {"communication", {"its own", "passed through"}},
      {"reshard after forward", {"as ever", "changed in each step"}},
      {"streams", {"calm", "adversarial"}},
  };
  return options;
}

std::vector<MeshAxis> AxesOf(int mesh) {
  static const std::vector<std::vector<MeshAxis>> meshes = {
      {{"fsdp", 2}},
      {{"fsdp", 3}},
      {{"fsdp", 4}},
      {{"replicate", 2}, {"fsdp", 2}},
      {{"fsdp", 2}, {"tp", 2}},
      {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}},
      {{"replicate", 2}, {"fsdp", 4}},
      {{"fsdp", 4}, {"tp", 2}},
  };
  return meshes[static_cast<size_t>(mesh)];
}

int SizeOfAxis(const std::vector<MeshAxis>& axes, const std::string& name) {
  for (const MeshAxis& axis : axes) {
    if (axis.name == name) return static_cast<int>(axis.size);
  }
  return 1;
}

// Parameters split by tp need the extension and cannot be replicated, and two
// must be less than all.
bool MakeSense(int a, int va, int b, int vb) {
  if (a != kMesh) return true;
  const std::vector<MeshAxis> axes = AxesOf(va);
  if (b == kExtension) return vb == 0 || SizeOfAxis(axes, "tp") == 1;
  if (b == kReshard) return vb != 3 || SizeOfAxis(axes, "fsdp") > 3;
  if (b == kInnerForm) return vb != 2 || SizeOfAxis(axes, "tp") == 1;
  return true;
}

/// relu(up(first(x))).
class Inner final : public nn::Module {
 public:
  explicit Inner(std::shared_ptr<nn::Parameter> weight)
      : first_(std::move(weight)), up_(kDim, kHidden, {.bias = true}) {
    RegisterModule("first", first_);
    RegisterModule("up", up_);
  }
  const char* type_name() const override { return "Inner"; }
  nn::Linear& first() { return first_; }
  nn::Linear& up() { return up_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Relu(up_.Forward(first_.Forward(inputs[0])))};
  }

 private:
  nn::Linear first_;
  nn::Linear up_;
};

/// down(inner(x)) + offset.
class Middle final : public nn::Module {
 public:
  explicit Middle(std::shared_ptr<nn::Parameter> weight)
      : inner_(std::move(weight)),
        down_(kHidden, kDim, {.bias = true}),
        unused_(kDim, kDim),
        offset_(std::make_shared<nn::Parameter>(Shape{kDim}, kFloat32,
                                                nn::Initializer{})) {
    RegisterModule("inner", inner_);
    RegisterModule("down", down_);
    RegisterModule("unused", unused_);
    RegisterParameter("offset", offset_);
  }
  const char* type_name() const override { return "Middle"; }
  Inner& inner() { return inner_; }
  nn::Parameter& offset() { return *offset_; }
  nn::Parameter& unused() { return *unused_.weight(); }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor y = down_.Forward(inner_.Forward(inputs[0]));
    const Tensor& offset = offset_->Get();
    return {ToDType(Add(ToDType(y, offset.dtype()), offset), y.dtype())};
  }

 private:
  Inner inner_;
  nn::Linear down_;
  nn::Linear unused_;
  std::shared_ptr<nn::Parameter> offset_;
};

/// head(middle(x)): three groups, one in the other.
class Outer final : public nn::Module {
 public:
  explicit Outer(bool tied)
      : head_(kDim, kDim, {.bias = true}),
        middle_(tied ? head_.weight()
                     : std::make_shared<nn::Parameter>(
                           Shape{kDim, kDim}, kFloat32, nn::Initializer{})) {
    RegisterModule("middle", middle_);
    RegisterModule("head", head_);
    NamedParameters();
  }
  const char* type_name() const override { return "Outer"; }
  Middle& middle() { return middle_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {head_.Forward(middle_.Forward(inputs[0]))};
  }

 private:
  nn::Linear head_;
  Middle middle_;
};

/// What decides what training computes; all else must not.
struct Task {
  bool tied;
  bool offset_trained;
  bool has_unused;
  int microbatches;
  friend bool operator<(const Task& a, const Task& b) {
    return std::tie(a.tied, a.offset_trained, a.has_unused, a.microbatches) <
           std::tie(b.tied, b.offset_trained, b.has_unused, b.microbatches);
  }
};

struct Trained {
  std::vector<double> losses;  ///< By step.
  std::vector<std::vector<float>> weights;
};

std::unique_ptr<Outer> MakeModel(const Task& task) {
  auto model = std::make_unique<Outer>(task.tied);
  int64_t salt = 0;
  for (nn::Parameter* p : model->Parameters()) {
    p->set_data(SmallIntegers(p->data().sizes(), ++salt));
  }
  model->middle().offset().set_requires_grad(task.offset_trained);
  model->middle().unused().set_requires_grad(task.has_unused);
  return model;
}

Tensor LossOf(Outer& model, const Tensor& x) {
  return Sum(ToDType(model.Forward(x), kFloat64));
}

// w - gradient modulo 3, in -1, 0 and 1: a gradient that is off by one shows.
void Descend(nn::Module& model, int microbatches) {
  NoGrad no_grad;
  for (nn::Parameter* p : model.Parameters()) {
    if (!p->grad().defined()) continue;
    const Tensor data = LocalTensor(p->data());
    std::vector<float> values = data.ToVector<float>();
    const std::vector<float> grads = LocalTensor(p->grad()).ToVector<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      const float gradient = std::round(grads[i]);
      CH_CHECK_LE(std::abs(grads[i] - gradient),
                  static_cast<float>(microbatches) * std::ldexp(1.0f, -23) *
                      std::abs(gradient))
          << p->name();
      // Thirds of it add up exactly in float16.
      CH_CHECK_LE(std::abs(gradient), 682.0f) << p->name();
      const float sum = std::fmod(values[i] - gradient + 1, 3.0f);
      values[i] = (sum < 0 ? sum + 3 : sum) - 1;
    }
    CopyInPlace(data, FromValues<float>(data.sizes(), values));
    p->set_grad(Tensor());
  }
}

Trained TrainDense(const Task& task) {
  const std::unique_ptr<Outer> model = MakeModel(task);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    double& loss = trained.losses.emplace_back();
    for (int m = 0; m < task.microbatches; ++m) {
      const Tensor part = LossOf(*model, BatchOf(0, 1, 3 * step + m, kDim));
      CH_CHECK_OK(Backward(part));
      loss += part.Detach().ToVector<double>()[0];
    }
    Descend(*model, task.microbatches);
  }
  for (nn::Parameter* p : model->Parameters()) {
    trained.weights.push_back(p->data().ToVector<float>());
  }
  return trained;
}

class Row {
 public:
  explicit Row(Combination values) : values_(std::move(values)) {}

  int at(Option option) const { return values_[static_cast<size_t>(option)]; }
  std::vector<MeshAxis> axes() const { return AxesOf(at(kMesh)); }
  int data_ranks() const {
    return SizeOfAxis(axes(), "replicate") * SizeOfAxis(axes(), "fsdp");
  }
  int tp_ranks() const { return SizeOfAxis(axes(), "tp"); }
  Task task() const {
    return {.tied = at(kTied) == 1,
            .offset_trained = at(kOffset) == 0,
            .has_unused = at(kUnused) > 0,
            .microbatches = at(kAccumulation) == 0 ? 1 : 2};
  }
  // What the loss is multiplied by, for gradients to be divided by it.
  double factor() const {
    const int value = at(kDivideFactor);
    return value == 0 ? data_ranks() : value;
  }
  std::optional<DType> param_dtype() const {
    if (at(kParamDtype) == 0) return std::nullopt;
    return at(kParamDtype) == 1 ? kFloat64 : kBFloat16;
  }

  FullyShardOptions OptionsOf(Outer& model) const {
    FullyShardOptions options;
    const nn::Parameter* const offset = &model.middle().offset();
    options.mixed_precision.param_dtype = param_dtype();
    if (at(kOverride) == 1) {
      options.mixed_precision.param_dtype_override =
          [offset](const nn::Parameter& p) -> std::optional<DType> {
        if (&p != offset) return std::nullopt;
        return kFloat32;
      };
    }
    if (at(kReduceDtype) > 0) {
      options.mixed_precision.reduce_dtype =
          at(kReduceDtype) == 1 ? kFloat64 : kFloat16;
    }
    options.mixed_precision.cast_forward_inputs = at(kCastInputs) == 0;
    if (at(kReshard) == 1) options.reshard_after_forward = true;
    if (at(kReshard) == 2) options.reshard_after_forward = false;
    if (at(kReshard) == 3) options.post_forward_mesh_size = 2;
    constexpr int kDepths[] = {1, 0, 2};
    options.prefetch.forward = kDepths[at(kForwardPrefetch)];
    options.prefetch.backward = kDepths[at(kBackwardPrefetch)];
    if (at(kPrefetchBytes) == 1) options.prefetch.bytes = 100;
    options.reduction.buffers = at(kReduceBuffers) == 0 ? 1 : 3;
    if (at(kDivideFactor) > 0) options.reduction.divide_factor = factor();
    options.reduction.force_sum = at(kForceSum) == 1;
    options.cpu_offload = at(kOffload) == 1;
    if (at(kShardDim) == 1) {
      options.shard_dim = [](const nn::Parameter&) { return -1; };
    }
    if (at(kExtension) == 0) options.extension = DTensorExtensions::Create();
    if (at(kOffset) == 2) options.ignored_params = {offset};
    return options;
  }

  absl::Status Shard(World& world, Outer& model) const {
    CH_ASSIGN_OR_RETURN(DeviceMesh mesh, InitDeviceMesh(world, axes()));
    if (tp_ranks() > 1) {
      CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
      CH_RETURN_IF_ERROR(tp::ParallelizeModule(
          model, tp,
          {{"middle.inner.up", tp::ColwiseParallel()},
           {"middle.down", tp::RowwiseParallel({.use_local_output = true})}}));
      std::vector<std::string> data(mesh.axis_names().begin(),
                                    mesh.axis_names().end());
      data.pop_back();
      CH_ASSIGN_OR_RETURN(mesh, mesh.Slice(data));
    }
    FullyShardOptions options = OptionsOf(model);
    CH_RETURN_IF_ERROR(ShardInner(model.middle().inner(), mesh, options));
    CH_RETURN_IF_ERROR(fsdp::FullyShard(model.middle(), mesh, options));
    // Of the root alone: what is within goes on in the compute dtype.
    if (at(kOutputDtype) == 1) options.mixed_precision.output_dtype = kFloat64;
    return fsdp::FullyShard(model, mesh, options);
  }

  absl::Status ShardInner(Inner& inner, const DeviceMesh& mesh,
                          const FullyShardOptions& options) const {
    if (at(kInnerForm) == 0) return fsdp::FullyShard(inner, mesh, options);
    if (at(kInnerForm) == 1) {
      return fsdp::FullyShard({&inner.first(), &inner.up()}, mesh, options);
    }
    FullyShardOptions whole = options;
    whole.reshard_after_forward = std::nullopt;
    whole.post_forward_mesh_size = 0;
    whole.shard_dim = nullptr;
    whole.extension = nullptr;
    if (mesh.ndim() == 1) return fsdp::Replicate(inner, mesh, whole);
    CH_ASSIGN_OR_RETURN(const DeviceMesh flat,
                        mesh.Flatten(mesh.axis_names(), "data"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh data, flat.Slice("data"));
    return fsdp::Replicate(inner, data, whole);
  }

  // What is told once, after sharding.
  absl::Status SetUp(Outer& model) const {
    if (at(kPrefetchLists) == 1) {
      Inner& inner = model.middle().inner();
      std::vector<nn::Module*> inners;
      if (at(kInnerForm) == 0) inners = {&inner};
      if (at(kInnerForm) == 1) inners = {&inner.first()};
      const auto on_root = [&](Settings& s) {
        s.forward_prefetch_modules = {&model.middle()};
        s.backward_prefetch_modules.emplace();
      };
      CH_RETURN_IF_ERROR(Configure(model, on_root, /*recurse=*/false));
      const auto on_middle = [&](Settings& s) {
        s.forward_prefetch_modules.emplace();
        s.backward_prefetch_modules = inners;
      };
      CH_RETURN_IF_ERROR(
          Configure(model.middle(), on_middle, /*recurse=*/false));
    }
    if (at(kCustomComm) == 1) {
      fsdp::CustomComm custom;
      custom.all_gather =
          custom.reduce_scatter = [](Communicator& communicator,
                                     Collective collective, Stream& stream) {
            return communicator.Issue(std::move(collective), stream);
          };
      custom.all_reduce_hook = [](const Tensor& reduced) {
        MulInPlace(reduced, 1);
      };
      CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
        s.custom_comm = std::make_shared<const fsdp::CustomComm>(custom);
      }));
    }
    return absl::OkStatus();
  }

  // The switches of a backward, the last one of its step or not.
  absl::Status Steer(Outer& model, bool last) const {
    return Configure(model, [&](Settings& s) {
      s.requires_gradient_sync = last || at(kAccumulation) != 2;
      s.requires_all_reduce = last || at(kAccumulation) != 3;
      s.is_last_backward = last || at(kAccumulation) != 4;
      s.reshard_after_backward = last || at(kAfterBackward) == 0;
    });
  }

  absl::Status Train(World& world, Trained& trained) const {
    const std::unique_ptr<Outer> model = MakeModel(task());
    CH_RETURN_IF_ERROR(Shard(world, *model));
    if (at(kCheckpoint) > 0) {
      nn::Module& kept_out =
          at(kCheckpoint) == 1
              ? static_cast<nn::Module&>(model->middle().inner())
              : model->middle();
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(kept_out));
    }
    CH_ASSIGN_OR_RETURN(ShardedModule sharded, ShardedModule::Of(*model));
    CH_RETURN_IF_ERROR(SetUp(*model));
    CH_RETURN_IF_ERROR(Configure(*model, [&](Settings& s) {
      s.keep_unsharded = at(kKeepUnsharded) == 1;
      s.reduce_unused_params = at(kUnused) == 2;
      s.manual_finalization = at(kAccumulation) == 5;
    }));
    const int rank = world.rank() / tp_ranks();
    const int microbatches = task().microbatches;
    for (int step = 0; step < kSteps; ++step) {
      if (at(kReshardLate) == 1) {
        CH_RETURN_IF_ERROR(Configure(*model, [&](Settings& s) {
          s.reshard_after_forward = step % 2 == 0;
        }));
      }
      if (at(kOptimizerEvent) == 1) {
        sharded.SetPostOptimizerEvent(
            world.context().compute_stream().Record());
      }
      double& loss = trained.losses.emplace_back();
      for (int m = 0; m < microbatches; ++m) {
        CH_RETURN_IF_ERROR(Steer(*model, m + 1 == microbatches));
        Tensor x = BatchOf(rank, data_ranks(), 3 * step + m, kDim);
        if (at(kCastInputs) == 1) {
          x = ToDType(x, param_dtype().value_or(kFloat32));
        }
        if (at(kByHand) == 1) sharded.Unshard();
        const Tensor part = LossOf(*model, x);
        CH_RETURN_IF_ERROR(Backward(Mul(part, factor())));
        loss += part.Detach().ToVector<double>()[0];
      }
      if (at(kAccumulation) == 5) sharded.FinalizeBackward().Wait();
      Descend(*model, microbatches);
    }
    NoGrad no_grad;
    for (nn::Parameter* p : model->Parameters()) {
      trained.weights.push_back(FullTensor(p->data()).ToVector<float>());
    }
    return world.context().Synchronize();
  }

 private:
  const Combination values_;
};

absl::Status SumOverRanks(World& world, std::vector<double>& values) {
  RankContext& context = world.context();
  CH_ASSIGN_OR_RETURN(
      const auto all,
      world.Group("losses", world.AllRanks(), context.compute_stream().name()));
  // In memory of the device that the ranks are on.
  const Tensor sums = FromValues<double>({static_cast<int64_t>(values.size())},
                                         absl::MakeConstSpan(values));
  CH_RETURN_IF_ERROR(AllReduce(*all, sums.raw_data(), sums.numel(), kFloat64,
                               ReduceOp::kSum, context.compute_stream(),
                               "losses"));
  values = sums.ToVector<double>();
  return context.Synchronize();
}

TEST(FsdpPairwiseTest, TheCombinationsCoverAllPairs) {
  const std::vector<Combination> rows =
      CoverAllPairs(TestedOptions(), MakeSense);
  const int n = static_cast<int>(TestedOptions().size());
  const auto values = [](int factor) {
    return static_cast<int>(
        TestedOptions()[static_cast<size_t>(factor)].values.size());
  };
  for (int a = 0; a < n; ++a) {
    for (int b = a + 1; b < n; ++b) {
      for (int va = 0; va < values(a); ++va) {
        for (int vb = 0; vb < values(b); ++vb) {
          const bool found =
              std::any_of(rows.begin(), rows.end(), [&](const Combination& c) {
                return c[static_cast<size_t>(a)] == va &&
                       c[static_cast<size_t>(b)] == vb;
              });
          EXPECT_EQ(found, MakeSense(a, va, b, vb))
              << a << "=" << va << " " << b << "=" << vb;
        }
      }
    }
  }
}

TEST(FsdpPairwiseTest, EveryPairOfOptionsTrainsAsOneRankDoes) {
  std::map<Task, Trained> dense;
  uint64_t number = 0;
  for (const Combination& combination :
       CoverAllPairs(TestedOptions(), MakeSense)) {
    SCOPED_TRACE(Describe(TestedOptions(), combination));
    ++number;
    const Row row(combination);
    auto [expected, is_new] = dense.try_emplace(row.task());
    if (is_new) expected->second = TrainDense(row.task());
    const int ranks = row.data_ranks() * row.tp_ranks();
    const absl::Status status = StatusOfRanks(
        ranks,
        [&](World& world) -> absl::Status {
          Trained trained;
          CH_RETURN_IF_ERROR(row.Train(world, trained));
          CH_EXPECT_EQ(trained.weights, expected->second.weights);
          // Those of one tensor-parallel rank are the others'
          // too.
          if (world.rank() % row.tp_ranks() != 0) {
            trained.losses.assign(kSteps, 0);
          }
          CH_RETURN_IF_ERROR(SumOverRanks(world, trained.losses));
          CH_EXPECT_EQ(trained.losses, expected->second.losses);
          return absl::OkStatus();
        },
        {.threads_per_rank = 1,
         .test = {.adversarial_seed = row.at(kStreams) == 1 ? number : 0}});
    ASSERT_TRUE(status.ok()) << status;
    if (testing::Test::HasFailure()) break;  // The others fail alike.
  }
}

}  // namespace
}  // namespace crosshatch
