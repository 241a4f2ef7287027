// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/train.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/report.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/launch/stop.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/adamw.h"
#include "crosshatch/nn/clip_grad.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/sum_is_finite.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::examples {
namespace {

bool HasAxis(const TrainOptions& options, absl::string_view name) {
  return std::any_of(options.mesh.begin(), options.mesh.end(),
                     [&](const MeshAxis& axis) { return axis.name == name; });
}

// The axes that split the batch. FullyShard goes by their order: copies over
// the first of two, shards over the second. The user's goes by their names.
std::vector<std::string> DataAxes(const TrainOptions& options) {
  if (HasAxis(options, "replicate")) return {"replicate", "fsdp"};
  return {"fsdp"};
}

// Heads are split whole, a key head with the query heads that use it, or, where
// that leaves ranks without any, the query heads alone
// (LinearOptions::out_part).
int RanksWithoutHeads(const TrainOptions& options) {
  const nn::LlamaConfig config = options.config.Resolved();
  const int64_t ranks = options.AxisSize("tp");
  const auto busy = [ranks](int64_t units) {
    const int64_t share = (units + ranks - 1) / ranks;
    return (units + share - 1) / share;
  };
  const bool splits_groups =
      config.kv_heads < ranks &&
      (config.heads + ranks - 1) / ranks < config.heads / config.kv_heads;
  return static_cast<int>(ranks -
                          busy(splits_groups ? config.heads : config.kv_heads));
}

// Splits the model over the mesh: by tp first, then each block and the rest by
// FSDP.
absl::Status Parallelize(nn::Llama& model, const DeviceMesh& mesh,
                         const TrainOptions& options) {
  if (HasAxis(options, "tp")) {
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
  // `speaks`: prints, and writes the metrics.
  Trainer(World& world, const TrainOptions& options, const TokenSource& tokens,
          DeviceMesh mesh, bool speaks)
      : world_(world),
        options_(options),
        tokens_(tokens),
        mesh_(std::move(mesh)),
        speaks_(speaks),
        model_(options.config),
        report_(speaks_, options.steps) {}

  absl::Status Run();

 private:
  absl::Status SetUp();
  // This rank's rows of a step, [rows, seq_len] each: inputs and targets.
  std::pair<Tensor, Tensor> Batch(int64_t step) const;
  absl::Status Step(nn::AdamW& optimizer, int64_t step, StepMetrics& metrics);
  // Sums this rank's share of the loss over the ranks that split the batch.
  absl::StatusOr<double> GlobalLoss(const Tensor& loss);
  /// Whether the trained weights may take the place of others.
  absl::Status CheckWeights();

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

std::pair<Tensor, Tensor> Trainer::Batch(int64_t step) const {
  const Shape shape = {rows_.size(), options_.seq_len};
  // A dry run of a batch beyond this machine's memory holds no batch.
  if (world_.device().is_meta()) {
    return {Empty(shape, kInt32), Empty(shape, kInt32)};
  }
  const TokenBatch batch = tokens_.Rows(
      step, options_.global_batch, options_.seq_len, rows_.begin, rows_.end);
  return {FromValues<int32_t>(shape, batch.inputs),
          FromValues<int32_t>(shape, batch.targets)};
}

absl::Status Trainer::Step(nn::AdamW& optimizer, int64_t step,
                           StepMetrics& metrics) {
  const auto [inputs, targets] = Batch(step);
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

absl::Status Trainer::CheckWeights() {
  NoGrad no_grad;
  const Tensor squares = Zeros({}, kFloat64);
  for (const nn::Parameter* parameter : model_.Parameters()) {
    AddInPlace(squares,
               Sum(Square(ToDType(LocalTensor(parameter->data()), kFloat64))));
  }
  CH_ASSIGN_OR_RETURN(const bool finite,
                      nn::SumIsFinite(squares, {&mesh_, 1}, "weights"));
  if (finite) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the last step made weights that are not finite; ", options_.save_dir,
      " is left as it is; a smaller --lr may help"));
}

absl::Status Trainer::Run() {
  CH_RETURN_IF_ERROR(SetUp());
  report_.Start(mesh_, model_);
  if (const int idle = RanksWithoutHeads(options_); idle > 0) {
    report_.Note(absl::StrCat(
        idle, " of ", options_.AxisSize("tp"),
        " tp ranks compute no attention: heads stay whole, and the model has ",
        model_.config().heads, " with ", model_.config().kv_heads,
        " key heads"));
  }
  if (speaks_ && options_.run.backend == Backend::kFake) {
    report_.Plan(fsdp::DescribePlan(model_, options_.verbose
                                                ? fsdp::PlanDetail::kEveryRank
                                                : fsdp::PlanDetail::kSummary));
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
  absl::Status unwritten;
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
    // Weeks of training are worth more than a line.
    if (const absl::Status status = file.Write(metrics, world_.rank());
        !status.ok() && unwritten.ok()) {
      unwritten = status;
      report_.Warn(std::string(status.message()));
    }
    report_.Step(metrics);
    if (step + 1 == options_.steps) break;  // There is nothing left to stop.
    CH_ASSIGN_OR_RETURN(const bool stops, StopRequested(world_));
    if (stops) {
      report_.Note(absl::StrCat("stopped by a signal after step ", step + 1));
      break;
    }
  }
  if (!options_.save_dir.empty()) {
    CH_RETURN_IF_ERROR(CheckWeights());
    CH_RETURN_IF_ERROR(checkpoint::SaveHuggingFace(
        world_, model_, options_.save_dir,
        {.overwrite = options_.overwrite, .beside_if_refused = true}));
  }
  report_.Finish(options_.save_dir);
  return unwritten;
}

}  // namespace

absl::Status Train(World& world, const TrainOptions& options,
                   const TokenSource& tokens) {
  CH_ASSIGN_OR_RETURN(DeviceMesh mesh, InitDeviceMesh(world, options.mesh));
  const bool speaks =
      options.run.backend == Backend::kFake || world.rank() == 0;
  return Trainer(world, options, tokens, std::move(mesh), speaks).Run();
}

absl::StatusOr<int64_t> DryPeak(const TrainOptions& options,
                                const TokenSource& tokens, int rank) {
  TrainOptions dry = options;
  dry.run.backend = Backend::kFake;
  dry.steps = 1;
  dry.metrics.clear();
  dry.save_dir.clear();
  int64_t peak = 0;
  CH_RETURN_IF_ERROR(RunFake(
      {.world_size = options.world_size(), .rank = rank},
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(DeviceMesh mesh, InitDeviceMesh(world, dry.mesh));
        CH_RETURN_IF_ERROR(
            Trainer(world, dry, tokens, std::move(mesh), /*speaks=*/false)
                .Run());
        peak = world.context().allocator().stats().peak_total;
        return absl::OkStatus();
      }));
  return peak;
}

}  // namespace crosshatch::examples
