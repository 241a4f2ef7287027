// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/train.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/run_directory.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/page/run_page.h"
#include "crosshatch/examples/page/step_trace.h"
#include "crosshatch/examples/parallelize_llama.h"
#include "crosshatch/examples/report.h"
#include "crosshatch/examples/run_identity.h"
#include "crosshatch/examples/sample.h"
#include "crosshatch/fsdp/accumulate.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/launch/stop.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/mesh/mesh_collectives.h"
#include "crosshatch/nn/layers/float8.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/optim/grad_scaler.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/span.h"
#include "crosshatch/tensor/step_graph.h"

namespace crosshatch::examples {
namespace {

// Returns micro-batch `i` of `count` for `rows` rows. The last ones may have
// fewer rows.
Interval MicroBatch(int64_t rows, int64_t count, int64_t i) {
  const int64_t share = (rows + count - 1) / count;
  return {std::min(rows, i * share), std::min(rows, (i + 1) * share)};
}

std::vector<nn::AdamWGroup> Groups(const TrainOptions& options) {
  if (!options.decay_matrices_only) return {};
  return {nn::NoDecayOfVectors(),
          {.has = nn::NameMatches("embed_tokens.weight"), .weight_decay = 0}};
}

class Trainer {
 public:
  // \param reports whether this rank prints and writes the metrics.
  Trainer(World& world, const TrainOptions& options, const TokenSource& tokens,
          const TokenSource* eval, DeviceMesh mesh, bool reports)
      : world_(world),
        options_(options),
        tokens_(tokens),
        eval_(eval),
        mesh_(std::move(mesh)),
        reports_(reports),
        model_(options.config),
        optimizer_(model_.Parameters(),
                   {.lr = options.lr,
                    .beta1 = options.beta1,
                    .beta2 = options.beta2,
                    .eps = options.eps,
                    .weight_decay = options.weight_decay},
                   Groups(options)),
        report_(reports_, options.steps),
        checkpoints_(world, options.checkpoints,
                     {.keep = static_cast<int>(std::min<int64_t>(
                          options.keep, std::numeric_limits<int>::max())),
                      .async = options.save_async}),
        identity_(RunIdentity::Of(options, tokens)),
        seed_(static_cast<int64_t>(options.seed)) {}

  absl::Status Run();

 private:
  absl::Status SetUp();
  // Resumes from the checkpoint of --resume. Returns whether there is one.
  absl::StatusOr<bool> Resume();
  // Compares the run of the checkpoint of `step` in `dir` with this one.
  // \error names differences that are not allowed.
  absl::Status CompareWith(const std::string& dir, int64_t step);
  void PrintIntroduction();
  // Trains to the last step or until a signal requests a stop.
  absl::Status TrainSteps(MetricsFile& file);
  absl::Status SaveCheckpoint();
  absl::Status PollSave();
  absl::Status EndSave();
  // Warns of something that could not be written; Run returns the error at the
  // end. Weeks of training are worth more than a line or a checkpoint.
  // \error The rank's first error, after which the run cannot continue.
  absl::Status Unwritten(const absl::Status& status);
  struct LabelledRows {
    TensorList inputs;  // Of the model: tokens [rows, seq_len], documents.
    Tensor targets;     // [rows, seq_len]
  };
  // Returns `rows` of the batch that begins at token `position`.
  LabelledRows Batch(const TokenSource& tokens, int64_t position,
                     const Interval& rows) const;
  // Returns the sum of the losses of all targets, divided by `targets`.
  Tensor Loss(const LabelledRows& batch, double targets);
  absl::Status Step(StepMetrics& metrics);
  absl::Status Learn(StepMetrics& metrics);
  // Computes the gradients of the step that divides its loss by `targets`, and
  // this rank's part of the loss. They may be a replay.
  absl::StatusOr<Tensor> GraphOfGradients(double targets);
  // Adds this rank's part of a micro-batch's loss.
  void AddOwnPart(const Tensor& loss, Tensor& so_far) const;
  // Sums the ranks' parts of a loss.
  absl::StatusOr<double> GlobalLoss(const Tensor& own, int64_t step);
  // Returns the mean loss over all whole rows of the evaluation text.
  absl::StatusOr<double> Evaluate();
  absl::Status PrintSample();
  // Returns whether step_ is a multiple of `every` or the run's last step.
  bool IsDue(int64_t every) const {
    return step_ == options_.steps || (every > 0 && step_ % every == 0);
  }
  // Returns whether the page shows details of `step` (from 1).
  bool IsShown(int64_t step) const;
  absl::Status WritePage(RunPage::State state);
  // Checks that the trained weights may replace those in `place`.
  absl::Status CheckWeights(const std::string& place);

  World& world_;
  const TrainOptions& options_;
  const TokenSource& tokens_;
  const TokenSource* const eval_;  // May be null.
  const DeviceMesh mesh_;
  const bool reports_;
  nn::Llama model_;
  nn::AdamW optimizer_;
  Report report_;
  std::optional<DeviceMesh> data_;  // The mesh that rows are split over.
  checkpoint::RunCheckpoints checkpoints_;
  std::optional<RunPage> page_;  // On the reporting rank.
  absl::Status unwritten_page_;
  absl::Status unwritten_metrics_;
  absl::Status unwritten_;            // The first error of a write.
  std::unique_ptr<StepGraph> graph_;  // Null: each step runs.
  std::string graph_note_;            // The latest reason for not replaying.
  bool saves_ = false;  // A save has begun and is not yet reported.

  int64_t step_ = 0;      // Completed steps.
  int64_t begun_at_ = 0;  // Steps completed before this run.
  bool stops_ = false;    // A signal has requested it.
  int64_t position_ = 0;  // In tokens_, of the next step's batch.
  RunIdentity identity_;
  int64_t seed_;  // The bits of TrainOptions::seed.
  nn::ModuleState parameters_{model_};
  nn::BoundValues progress_{{{"step", &step_},
                             {"position", &position_},
                             {"data_size", &identity_.tokens},
                             {"seed", &seed_}}};
  // Older checkpoints lack it and have a "batch", which is not read.
  nn::BoundValues setup_{identity_.Variables(""), {.allow_missing = true}};
  nn::BoundValues batch_{{}, {.allow_unexpected = true}};
  nn::CombinedState state_{{{"model", &parameters_},
                            {"optimizer", &optimizer_},
                            {"run", &progress_},
                            {"identity", &setup_},
                            {"batch", &batch_}}};
};

absl::Status Trainer::SetUp() {
  if (options_.float8.has_value()) {
    const nn::Float8Conversion made = nn::ConvertToFloat8Training(
        model_, {.recipe = *options_.float8, .skip = {"lm_head"}});
    if (made.converted.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--float8=", NameOf(options_.float8), ": ", made.ToString()));
    }
    report_.Note(made.ToString());
  }
  CH_RETURN_IF_ERROR(ParallelizeLlama(model_, mesh_, options_));
  CH_ASSIGN_OR_RETURN(data_, mesh_.Slice(DataAxes(options_)));
  if (ReplaysSteps(options_)) {
    CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all,
                        AllRanks(world_));
    graph_ = std::make_unique<StepGraph>(StepGraphOptions{
        .mode = options_.cuda_graphs, .exchange = [all](std::string text) {
          return all->Exchange(text, "the graph of a step");
        }});
  }
  CH_ASSIGN_OR_RETURN(const bool resumes, Resume());
  if (resumes) return absl::OkStatus();
  return options_.model_dir.empty()
             ? model_.Materialize({.seed = options_.seed})
             : checkpoint::LoadHuggingFace(model_, options_.model_dir);
}

absl::Status Trainer::CompareWith(const std::string& dir, int64_t step) {
  RunIdentity before = {.eos = RunIdentity::kUnknown};
  auto variables = before.Variables("identity.");
  variables.emplace_back("run.data_size", &before.tokens);
  nn::BoundValues values(std::move(variables),
                         {.allow_missing = true, .allow_unexpected = true});
  CH_RETURN_IF_ERROR(checkpoints_.Load(values, step));
  const auto changes = before.ChangesTo(identity_, options_.may_change);
  if (!changes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir, " belongs to another run: ", changes.status().message()));
  }
  for (const std::string& change : *changes) {
    report_.Note(absl::StrCat("since ", dir, " ", change));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Trainer::Resume() {
  if (!options_.resume) return false;
  std::optional<int64_t> from = options_.resume_step;
  if (!from.has_value()) {
    CH_ASSIGN_OR_RETURN(from, checkpoints_.Latest());
  }
  if (!from.has_value()) {
    report_.Note(absl::StrCat(
        options_.checkpoints,
        " holds no checkpoint yet: the run starts from the beginning"));
    return false;
  }
  const std::string dir =
      checkpoint::StepDirectory(options_.checkpoints, *from);
  CH_RETURN_IF_ERROR(CompareWith(dir, *from));
  const RunIdentity now = identity_;
  CH_RETURN_IF_ERROR(checkpoints_.Load(state_, *from));
  if (step_ != *from || position_ < 0 || position_ >= identity_.tokens) {
    return absl::DataLossError(
        absl::StrCat(dir, " is of step ", step_, ", at token ", position_,
                     " of ", identity_.tokens, ", which is out of range"));
  }
  if (const auto seed = static_cast<uint64_t>(seed_);
      options_.seed_is_given && options_.seed != seed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seed=", options_.seed, ": ", dir, " is from a run with --seed=",
        seed, ", which a resumed run keeps; omit the flag"));
  }
  identity_ = now;
  report_.Resume(step_);
  report_.Note(absl::StrCat("resumes after step ", step_, " of ", dir));
  position_ %= tokens_.size();
  if (step_ >= options_.steps) {
    report_.Note(
        absl::StrCat("no steps are left to train: --steps=", options_.steps));
  } else if (options_.resume_step.has_value()) {
    const absl::Status aside = checkpoints_.SetAsideAfter(step_);
    if (absl::IsFailedPrecondition(aside)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--resume_step=", step_, ": ", aside.message(),
          "; --resume without --resume_step continues from the newest"));
    }
    CH_RETURN_IF_ERROR(aside);
  }
  return true;
}

Trainer::LabelledRows Trainer::Batch(const TokenSource& tokens,
                                     int64_t position,
                                     const Interval& rows) const {
  const Interval own = RowsOf(*data_, rows.size());
  const Shape shape = {own.size(), options_.seq_len};
  // A dry run of a batch beyond this machine's memory has no elements.
  if (world_.device().is_meta()) {
    TensorList inputs = {Empty(shape, kInt32)};
    if (options_.eos.has_value()) {
      inputs.push_back(Empty({own.size(), options_.seq_len, 2}, kInt32));
      inputs.push_back(Empty(shape, kInt32));
    }
    return {std::move(inputs), Empty(shape, kInt32)};
  }
  const TokenBatch batch = tokens.Rows(
      position, options_.seq_len, rows.begin + own.begin, rows.begin + own.end);
  TensorList inputs = {FromValues<int32_t>(shape, batch.inputs)};
  if (options_.eos.has_value()) {
    inputs.push_back(DocumentKeys(batch.documents, options_.seq_len));
    inputs.push_back(DocumentPositions(batch.documents, options_.seq_len));
  }
  return {std::move(inputs), FromValues<int32_t>(shape, batch.targets)};
}

Tensor Trainer::Loss(const LabelledRows& batch, double targets) {
  return Mul(CrossEntropy(model_.Call(batch.inputs)[0], batch.targets,
                          {.reduction = CrossEntropyOptions::Reduction::kSum,
                           .ignore_index = kIgnoredTarget}),
             1.0 / targets);
}

void Trainer::AddOwnPart(const Tensor& loss, Tensor& so_far) const {
  Tensor own = LocalTensor(loss).Detach();
  if (options_.accumulate > 1) own = ToDType(own, kFloat64);
  so_far = so_far.defined() ? Add(so_far, own) : own;
}

absl::StatusOr<double> Trainer::GlobalLoss(const Tensor& own, int64_t step) {
  CH_ASSIGN_OR_RETURN(const std::vector<double> sum,
                      SumOverMesh(*data_, own, "loss"));
  if (std::isfinite(sum[0])) return sum[0];
  return absl::OutOfRangeError(
      absl::StrCat("the loss of step ", step, " is ", sum[0],
                   step_ == 0 ? ", before any weight was updated"
                              : "; a smaller --lr may help"));
}

absl::StatusOr<Tensor> Trainer::GraphOfGradients(double targets) {
  const int64_t count = options_.accumulate;
  TensorList all;
  for (int64_t i = 0; i < count; ++i) {
    LabelledRows batch =
        Batch(tokens_, position_, MicroBatch(options_.global_batch, count, i));
    all.insert(all.end(), batch.inputs.begin(), batch.inputs.end());
    all.push_back(batch.targets);
  }
  const std::vector<nn::Parameter*> parameters = model_.Parameters();
  const auto step = [&](TensorSpan inputs) -> absl::StatusOr<TensorList> {
    const size_t of_batch = inputs.size() / static_cast<size_t>(count);
    Tensor so_far;
    CH_RETURN_IF_ERROR(fsdp::AccumulateGradients(
        model_, count,
        [&](int64_t i) -> absl::Status {
          const TensorSpan mine =
              inputs.subspan(static_cast<size_t>(i) * of_batch, of_batch);
          const Tensor loss =
              Loss({{mine.begin(), mine.end() - 1}, mine.back()}, targets);
          AddOwnPart(loss, so_far);
          return Backward(loss);
        },
        fsdp::AccumulateBy::kShards));
    TensorList results = {so_far};
    for (nn::Parameter* parameter : parameters) {
      results.push_back(parameter->grad());
      parameter->set_grad(Tensor());
    }
    return results;
  };
  CH_ASSIGN_OR_RETURN(const TensorList results, graph_->Run(all, step));
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->set_grad(results[i + 1]);
  }
  if (graph_->fallback_reason() != graph_note_) {
    graph_note_ = graph_->fallback_reason();
    if (!graph_note_.empty()) {
      report_.Note(
          absl::StrCat("a step is not replayed as a graph: ", graph_note_));
    }
  }
  return results[0];
}

absl::Status Trainer::Learn(StepMetrics& metrics) {
  // A step with no targets other than ends of documents has loss 0.
  const auto targets = static_cast<double>(std::max<int64_t>(
      1, tokens_.CountTargets(position_,
                              options_.global_batch * options_.seq_len)));
  double global_loss = 0;
  Tensor so_far;  // Of the micro-batches, this rank's share.
  const int64_t count = options_.accumulate;
  const auto micro_batch = [&](int64_t i) -> absl::Status {
    const Tensor loss = Loss(
        Batch(tokens_, position_, MicroBatch(options_.global_batch, count, i)),
        targets);
    AddOwnPart(loss, so_far);
    if (i + 1 == count) {
      CH_ASSIGN_OR_RETURN(global_loss, GlobalLoss(so_far, metrics.step));
    }
    return Backward(loss);
  };
  if (graph_ == nullptr) {
    CH_RETURN_IF_ERROR(fsdp::AccumulateGradients(model_, count, micro_batch,
                                                 fsdp::AccumulateBy::kShards));
  } else {
    CH_ASSIGN_OR_RETURN(so_far, GraphOfGradients(targets));
    CH_ASSIGN_OR_RETURN(global_loss, GlobalLoss(so_far, metrics.step));
  }
  Stream& compute = world_.context().compute_stream();
  BeginSpan(compute, "clip", "");
  CH_ASSIGN_OR_RETURN(
      const float norm,
      nn::ClipGradNorm(model_.Parameters(),
                       options_.clip_norm > 0
                           ? options_.clip_norm
                           : std::numeric_limits<double>::infinity()));
  EndSpan(compute, "clip", "");
  metrics.lr = options_.LearningRates().At(step_);
  optimizer_.set_lr(metrics.lr);
  BeginSpan(compute, "optimizer", "");
  CH_RETURN_IF_ERROR(optimizer_.Step());
  EndSpan(compute, "optimizer", "");
  optimizer_.ZeroGrad();
  if (!world_.device().is_meta()) {
    metrics.loss = global_loss;
    metrics.grad_norm = norm;
  }
  return absl::OkStatus();
}

absl::Status Trainer::Step(StepMetrics& metrics) {
  RankContext& context = world_.context();
  context.allocator().ResetPeaks();
  const Traffic traffic = TotalTraffic(world_);
  const int64_t copied = context.copied_bytes();
  const absl::Time begin = absl::Now();
  metrics.step = step_ + 1;
  std::optional<StepTracer> tracer;
  if (IsShown(metrics.step)) tracer.emplace(context);
  CH_RETURN_IF_ERROR(Learn(metrics));
  CH_RETURN_IF_ERROR(context.Synchronize());
  if (tracer.has_value()) page_->Set(tracer->Finish(metrics.step));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  metrics.step_ms = seconds * 1e3;
  metrics.tokens_per_s =
      static_cast<double>(options_.global_batch * options_.seq_len) / seconds;
  metrics.memory = context.allocator().stats();
  if (graph_ != nullptr) {
    const MemoryStats of_graph = graph_->memory();
    for (size_t i = 0; i < of_graph.peak.size(); ++i) {
      metrics.memory.peak[i] += of_graph.peak[i];
    }
    metrics.memory.peak_total += of_graph.peak_total;
  }
  metrics.copied_bytes = context.copied_bytes() - copied;
  metrics.traffic = Difference(TotalTraffic(world_), traffic);
  ++step_;
  position_ =
      tokens_.PositionAfter(position_, options_.seq_len, options_.global_batch);
  return absl::OkStatus();
}

absl::StatusOr<double> Trainer::Evaluate() {
  const NoGrad no_grad;
  // The last token is only a target.
  const int64_t rows = (eval_->size() - 1) / options_.seq_len;
  const auto targets = static_cast<double>(
      std::max<int64_t>(1, eval_->CountTargets(0, rows * options_.seq_len)));
  Tensor total = Zeros({}, kFloat64);
  for (int64_t row = 0; row < rows; row += options_.global_batch) {
    const Interval batch = {row, std::min(rows, row + options_.global_batch)};
    total = Add(
        total,
        ToDType(LocalTensor(Loss(Batch(*eval_, 0, batch), targets)), kFloat64));
  }
  CH_ASSIGN_OR_RETURN(const std::vector<double> sum,
                      SumOverMesh(*data_, total, "eval loss"));
  return sum[0];
}

absl::Status Trainer::CheckWeights(const std::string& place) {
  NoGrad no_grad;
  const Tensor squares = Zeros({}, kFloat64);
  for (const nn::Parameter* parameter : model_.Parameters()) {
    AddInPlace(squares,
               Sum(Square(ToDType(LocalTensor(parameter->data()), kFloat64))));
  }
  CH_ASSIGN_OR_RETURN(const bool finite, nn::SumIsFinite(squares, "weights"));
  if (finite) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("the last step made weights that are not finite; ", place,
                   " is not changed; a smaller --lr may help"));
}

absl::Status Trainer::PrintSample() {
  if (options_.sample == 0) return absl::OkStatus();
  std::vector<int32_t> tokens;
  for (const char c : options_.prompt) {
    tokens.push_back(static_cast<unsigned char>(c));
  }
  if (tokens.empty()) {
    tokens =
        tokens_.Rows(0, std::min(tokens_.size(), kDefaultPromptTokens), 0, 1)
            .inputs;
  }
  CH_ASSIGN_OR_RETURN(const std::vector<int32_t> drawn,
                      Sample(world_, model_, tokens,
                             {.count = options_.sample,
                              .temperature = options_.temperature,
                              .top_k = options_.top_k,
                              .seed = static_cast<uint64_t>(seed_)}));
  tokens.insert(tokens.end(), drawn.begin(), drawn.end());
  report_.Sample(options_.text.empty()
                     ? absl::StrJoin(tokens, " ")
                     : std::string(tokens.begin(), tokens.end()));
  return absl::OkStatus();
}

bool Trainer::IsShown(int64_t step) const {
  if (!page_.has_value()) return false;
  // The first step of a run is not representative.
  return step == begun_at_ + 2 || step == options_.steps ||
         (options_.report_every > 0 && step % options_.report_every == 0);
}

absl::Status Trainer::WritePage(RunPage::State state) {
  if (!page_.has_value()) return absl::OkStatus();
  const absl::Status status = page_->Write(state);
  // Reported once; the next write may succeed.
  const bool is_new = status != unwritten_page_;
  unwritten_page_ = status;
  return is_new ? Unwritten(status) : absl::OkStatus();
}

void Trainer::PrintIntroduction() {
  report_.Start(mesh_, model_);
  // Nothing is known about a user's plan.
  if (const int idle = RanksWithoutHeads(options_);
      idle > 0 && options_.plan.empty()) {
    report_.Note(absl::StrCat(idle, " of ", options_.AxisSize("tp"),
                              " tp ranks compute no attention: heads are not "
                              "split, and the model has ",
                              model_.config().heads, " with ",
                              model_.config().kv_heads, " key heads"));
  }
  if (reports_ && options_.run.engine == EngineKind::kFake) {
    report_.Plan(fsdp::DescribePlan(model_, options_.verbose
                                                ? fsdp::PlanDetail::kEveryRank
                                                : fsdp::PlanDetail::kSummary));
  }
}

absl::Status Trainer::SaveCheckpoint() {
  if (options_.checkpoints.empty()) return absl::OkStatus();
  CH_RETURN_IF_ERROR(CheckWeights(options_.checkpoints));
  // An error of the previous save must not prevent this one.
  CH_RETURN_IF_ERROR(EndSave());
  const absl::Status saved = checkpoints_.Save(state_, step_);
  saves_ = saved.ok();
  return Unwritten(saved);
}

absl::Status Trainer::PollSave() {
  const absl::Status saved = checkpoints_.Poll();
  saves_ = saves_ && saved.ok();
  return Unwritten(saved);
}

absl::Status Trainer::EndSave() {
  const absl::Status saved = checkpoints_.Wait();
  if (saves_ && saved.ok()) report_.Saved(checkpoints_.blocked_duration());
  saves_ = false;
  return Unwritten(saved);
}

absl::Status Trainer::Unwritten(const absl::Status& status) {
  if (status.ok()) return status;
  CH_RETURN_IF_ERROR(world_.context().status());
  report_.Warn(std::string(status.message()));
  if (unwritten_.ok()) unwritten_ = status;
  return absl::OkStatus();
}

absl::Status Trainer::TrainSteps(MetricsFile& file) {
  while (step_ < options_.steps && !stops_) {
    StepMetrics metrics;
    CH_RETURN_IF_ERROR(Step(metrics));
    CH_RETURN_IF_ERROR(PollSave());
    if (eval_ != nullptr && IsDue(options_.eval_every)) {
      CH_ASSIGN_OR_RETURN(metrics.eval_loss, Evaluate());
    }
    // After a failure, Write returns the same error each time.
    if (const absl::Status status = file.Write(metrics, world_.rank());
        status != unwritten_metrics_) {
      unwritten_metrics_ = status;
      CH_RETURN_IF_ERROR(Unwritten(status));
    }
    report_.Step(metrics);
    if (page_.has_value()) page_->Add(metrics);
    if (step_ < options_.steps && IsShown(step_)) {
      CH_RETURN_IF_ERROR(WritePage(RunPage::State::kRuns));
    }
    // After the last step there is nothing to stop.
    if (step_ < options_.steps) {
      CH_ASSIGN_OR_RETURN(stops_, StopRequested(world_));
      if (stops_) {
        report_.Note(absl::StrCat("stopped by a signal after step ", step_));
      }
    }
    if (stops_ || IsDue(options_.save_every)) {
      CH_RETURN_IF_ERROR(SaveCheckpoint());
    }
  }
  return EndSave();
}

absl::Status Trainer::Run() {
  CH_RETURN_IF_ERROR(SetUp());
  PrintIntroduction();
  CH_ASSIGN_OR_RETURN(
      MetricsFile file,
      MetricsFile::Open(reports_ ? options_.metrics : "", step_));
  // If no steps are left, the page of the previous run stays.
  if (reports_ && !options_.report.empty() && step_ < options_.steps) {
    begun_at_ = step_;
    CH_ASSIGN_OR_RETURN(RunPage page, RunPage::Open(options_.report, step_));
    page_.emplace(std::move(page));
    page_->Begin(model_, mesh_.layout(), Settings(options_));
  }
  if (const absl::Status trained = TrainSteps(file); !trained.ok()) {
    // The run's error takes precedence.
    WritePage(RunPage::State::kFailed).IgnoreError();
    return trained;
  }
  CH_RETURN_IF_ERROR(
      WritePage(stops_ ? RunPage::State::kStopped : RunPage::State::kEnded));
  if (!options_.save_dir.empty()) {
    CH_RETURN_IF_ERROR(CheckWeights(options_.save_dir));
    CH_RETURN_IF_ERROR(
        checkpoint::SaveHuggingFace(world_, model_, options_.save_dir,
                                    {.overwrite = options_.overwrite,
                                     .use_fallback_directory = true,
                                     .dtype = options_.save_dtype}));
  }
  CH_RETURN_IF_ERROR(PrintSample());
  report_.Finish(options_.save_dir);
  return unwritten_;
}

}  // namespace

absl::Status Train(World& world, const TrainOptions& options,
                   const TokenSource& tokens, const TokenSource* eval) {
  CH_ASSIGN_OR_RETURN(DeviceMesh mesh, InitDeviceMesh(world, options.mesh));
  CH_RETURN_IF_ERROR(CheckSameInputs(world, options, tokens, eval));
  const bool reports =
      options.run.engine == EngineKind::kFake || world.rank() == 0;
  return Trainer(world, options, tokens, eval, std::move(mesh), reports).Run();
}

absl::Status TrainDry(World& world, const TrainOptions& options,
                      const TokenSource& tokens, int64_t steps) {
  TrainOptions dry = options;
  dry.run.engine = EngineKind::kFake;
  dry.steps = steps;
  // The warmup may exceed the run.
  dry.schedule = nn::Schedule::Shape::kConstant;
  dry.metrics.clear();
  dry.report.clear();
  dry.save_dir.clear();
  dry.checkpoints.clear();
  dry.resume = false;
  dry.sample = 0;
  CH_ASSIGN_OR_RETURN(DeviceMesh mesh, InitDeviceMesh(world, dry.mesh));
  return Trainer(world, dry, tokens, /*eval=*/nullptr, std::move(mesh),
                 /*reports=*/false)
      .Run();
}

absl::StatusOr<int64_t> DryPeak(const TrainOptions& options,
                                const TokenSource& tokens, int rank) {
  int64_t peak = 0;
  CH_RETURN_IF_ERROR(RunFake(
      {.world_size = options.world_size(), .rank = rank},
      [&](World& world) -> absl::Status {
        CH_RETURN_IF_ERROR(TrainDry(world, options, tokens, /*steps=*/1));
        peak = world.context().allocator().stats().peak_total;
        return absl::OkStatus();
      }));
  return peak;
}

}  // namespace crosshatch::examples
