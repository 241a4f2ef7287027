// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/train.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/report.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/adamw.h"
#include "crosshatch/nn/clip_grad.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::examples {
namespace {

// The axes that split the batch.
std::vector<std::string> DataAxes(const TrainOptions& options) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : options.mesh) {
    if (axis.name != "tp") axes.push_back(axis.name);
  }
  return axes;
}

bool HasTp(const TrainOptions& options) {
  return DataAxes(options).size() < options.mesh.size();
}

// Splits the model over the mesh: by tp first, then each block and the rest by
// FSDP.
absl::Status Parallelize(nn::Llama& model, const DeviceMesh& mesh,
                         const TrainOptions& options) {
  if (HasTp(options)) {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp_mesh, mesh.Slice("tp"));
    CH_RETURN_IF_ERROR(tp::ParallelizeModule(model, tp_mesh, tp::LlamaPlan()));
  }
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp_mesh,
                      mesh.Slice(DataAxes(options)));
  fsdp::FullyShardOptions fsdp_options;
  // The loss is divided by the number of targets of the whole batch, so that
  // every target weighs the same however the batch splits.
  fsdp_options.gradient_divide_factor = 1.0;
  fsdp_options.extension = DTensorExtensions::Create();
  if (options.dtype != kFloat32) {
    fsdp_options.mixed_precision.param_dtype = options.dtype;
  }
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp_mesh, fsdp_options));
  }
  return fsdp::FullyShard(model, fsdp_mesh, fsdp_options);
}

// One rank's run.
class Trainer {
 public:
  Trainer(World& world, const TrainOptions& options, const TokenSource& tokens,
          DeviceMesh mesh)
      : world_(world),
        options_(options),
        tokens_(tokens),
        mesh_(std::move(mesh)),
        speaks_(options.backend == Backend::kFake || world.rank() == 0),
        model_(options.config),
        report_(speaks_, options.steps) {}

  absl::Status Run();

 private:
  absl::Status SetUp();
  absl::Status Step(nn::AdamW& optimizer, int64_t step, StepMetrics& metrics);
  // Sums this rank's share of the loss over the ranks that split the batch.
  absl::StatusOr<double> GlobalLoss(const Tensor& loss);

  World& world_;
  const TrainOptions& options_;
  const TokenSource& tokens_;
  const DeviceMesh mesh_;
  const bool speaks_;
  nn::Llama model_;
  Report report_;
  Communicator* data_comm_ = nullptr;
  Interval rows_;  // Of the global batch, this rank's.
};

absl::Status Trainer::SetUp() {
  CH_RETURN_IF_ERROR(Parallelize(model_, mesh_, options_));
  std::vector<int> data_axes;
  Layout batch = Layout::Replicated(mesh_.layout(), 1);
  for (const std::string& name : DataAxes(options_)) {
    CH_ASSIGN_OR_RETURN(const int axis, mesh_.layout().AxisIndex(name));
    data_axes.push_back(axis);
    batch = batch.WithShard(axis, 0);
  }
  rows_ = batch.DimInterval(0, options_.global_batch, *mesh_.coordinate());
  CH_ASSIGN_OR_RETURN(
      data_comm_,
      mesh_.communicator(data_axes, world_.context().compute_stream().name()));
  return options_.model_dir.empty()
             ? model_.Materialize({.seed = options_.seed})
             : checkpoint::LoadHuggingFace(model_, options_.model_dir);
}

absl::StatusOr<double> Trainer::GlobalLoss(const Tensor& loss) {
  NoGrad no_grad;
  const Tensor sum = ToDType(LocalTensor(loss), kFloat64);
  CH_RETURN_IF_ERROR(AllReduce(*data_comm_, sum.raw_data(), 1, kFloat64,
                               ReduceOp::kSum,
                               world_.context().current_stream(), "loss"));
  if (world_.device().is_meta()) return 0.0;
  const double value = sum.ToVector<double>()[0];
  CH_RETURN_IF_ERROR(world_.context().status());
  return value;
}

absl::Status Trainer::Step(nn::AdamW& optimizer, int64_t step,
                           StepMetrics& metrics) {
  const TokenBatch batch = tokens_.Rows(
      step, options_.global_batch, options_.seq_len, rows_.begin, rows_.end);
  const Shape shape = {rows_.size(), options_.seq_len};
  const Tensor inputs = FromValues<int32_t>(shape, batch.inputs);
  const Tensor targets = FromValues<int32_t>(shape, batch.targets);
  const double global_targets =
      static_cast<double>(options_.global_batch * options_.seq_len);

  const Tensor loss =
      Mul(CrossEntropy(model_.Forward(inputs), targets,
                       {.reduction = CrossEntropyOptions::Reduction::kSum}),
          1.0 / global_targets);
  CH_ASSIGN_OR_RETURN(const double global_loss, GlobalLoss(loss));
  if (!std::isfinite(global_loss)) {
    return absl::OutOfRangeError(absl::StrCat("the loss of step ", step + 1,
                                              " is ", global_loss,
                                              "; a smaller --lr may help"));
  }
  CH_RETURN_IF_ERROR(Backward(loss));
  CH_ASSIGN_OR_RETURN(
      const float norm,
      nn::ClipGradNorm(model_.Parameters(),
                       options_.clip_norm > 0
                           ? options_.clip_norm
                           : std::numeric_limits<double>::infinity()));
  CH_RETURN_IF_ERROR(optimizer.Step());
  optimizer.ZeroGrad();
  if (!world_.device().is_meta()) {
    metrics.loss = global_loss;
    metrics.grad_norm = norm;
  }
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  CH_RETURN_IF_ERROR(SetUp());
  report_.Start(mesh_, model_);
  if (options_.backend == Backend::kFake) {
    report_.Plan(fsdp::DescribePlan(model_));
  }
  CH_ASSIGN_OR_RETURN(MetricsFile file,
                      MetricsFile::Open(speaks_ ? options_.metrics : ""));
  nn::AdamW optimizer(model_.Parameters(),
                      {.lr = options_.lr,
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .eps = options_.eps,
                       .weight_decay = options_.weight_decay});
  RankContext& context = world_.context();
  for (int64_t step = 0; step < options_.steps; ++step) {
    context.allocator().ResetPeaks();
    const Traffic traffic = TotalTraffic(world_);
    const int64_t copied = context.copied_bytes();
    const absl::Time begin = absl::Now();
    StepMetrics metrics{.step = step + 1};
    CH_RETURN_IF_ERROR(Step(optimizer, step, metrics));
    CH_RETURN_IF_ERROR(context.Synchronize());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    metrics.step_ms = seconds * 1e3;
    metrics.tokens_per_s =
        static_cast<double>(options_.global_batch * options_.seq_len) / seconds;
    metrics.memory = context.allocator().stats();
    metrics.copied_bytes = context.copied_bytes() - copied;
    metrics.traffic = Difference(TotalTraffic(world_), traffic);
    CH_RETURN_IF_ERROR(file.Write(metrics, world_.rank()));
    report_.Step(metrics);
  }
  if (!options_.save_dir.empty()) {
    CH_RETURN_IF_ERROR(checkpoint::SaveHuggingFace(
        world_, model_, options_.save_dir, {.overwrite = options_.overwrite}));
  }
  report_.Finish();
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTraining(const TrainOptions& options,
                           const TokenSource& tokens) {
  const nn::LlamaConfig config = options.config.Resolved();
  CH_RETURN_IF_ERROR(config.Validate());
  if (const int tp = options.AxisSize("tp"); config.heads < tp) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has ", config.heads, " heads, fewer than the ",
                     tp, " tp ranks they are split over"));
  }
  if (tokens.max_token() >= config.vocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token ", tokens.max_token(), " is beyond the vocabulary of ",
        config.vocab, "; --vocab must be above every token"));
  }
  if (!options.save_dir.empty()) {
    CH_RETURN_IF_ERROR(checkpoint::CheckSaveDirectory(
        options.save_dir, {.overwrite = options.overwrite}));
  }
  return absl::OkStatus();
}

absl::Status Train(World& world, const TrainOptions& options,
                   const TokenSource& tokens) {
  CH_ASSIGN_OR_RETURN(DeviceMesh mesh, InitDeviceMesh(world, options.mesh));
  return Trainer(world, options, tokens, std::move(mesh)).Run();
}

}  // namespace crosshatch::examples
