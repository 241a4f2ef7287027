// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_SCRIPT_RUNNER_H_
#define CROSSHATCH_TESTS_FSDP_SCRIPT_RUNNER_H_

/// \file
/// What a script's runs on a mesh and on one rank have in common: the model,
/// whose numbers are small integers, and which calls are valid.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/recompute.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {

inline constexpr int64_t kScriptDim = 3;

class ScriptPart final : public nn::Module {
 public:
  /// \param parts receives this part and all below, by number
  ScriptPart(const PartSpec& spec, std::vector<ScriptPart*>& parts)
      : spec_(spec) {
    parts.push_back(this);
    if (spec.form == PartSpec::Form::kLinear) {
      linear_ = spec.tied_to < 0
                    ? &Make<nn::Linear>("linear", {.in = kScriptDim,
                                                   .out = kScriptDim,
                                                   .bias = spec.bias})
                    : &Make<nn::Linear>("linear",
                                        parts[static_cast<size_t>(spec.tied_to)]
                                            ->linear_->weight());
    }
    if (spec.form == PartSpec::Form::kShift) {
      shift_ = AddParameter("shift", {kScriptDim}, {});
    }
    for (const PartSpec& part : spec.parts) {
      parts_.push_back(
          &Make<ScriptPart>(absl::StrCat(parts_.size()), part, parts));
    }
  }

  const PartSpec& spec() const { return spec_; }
  nn::Linear* linear() { return linear_; }
  /// Returns whether it has parameters of its own.
  bool has_parameters() const {
    return linear_ != nullptr || shift_ != nullptr;
  }
  /// Sets whether the enclosing part skips it.
  void set_skipped(bool skipped) { skipped_ = skipped; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    if (linear_ != nullptr) x = linear_->Forward(x);
    if (shift_ != nullptr) x = Add(x, ToDType(shift_->Get(), x.dtype()));
    for (int i = 0; i < spec_.repeats; ++i) {
      for (ScriptPart* part : parts_) {
        if (!Captured(part->skipped_)) x = part->Forward(x);
      }
    }
    if (spec_.relu) x = Relu(x);
    if (spec_.form == PartSpec::Form::kResidual) {
      x = Add(inputs[0], ToDType(x, inputs[0].dtype()));
    }
    return {x};
  }

 private:
  const PartSpec spec_;
  nn::Linear* linear_ = nullptr;
  std::shared_ptr<nn::Parameter> shift_;
  std::vector<ScriptPart*> parts_;
  bool skipped_ = false;
};

struct ScriptModel {
  explicit ScriptModel(const PartSpec& spec)
      : root(std::make_unique<ScriptPart>(spec, parts)) {
    int64_t salt = 0;
    for (nn::Parameter* p : root->Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
    for (ScriptPart* part : parts) {
      if (!part->has_parameters() || !part->spec().frozen) continue;
      for (nn::Parameter* p : part->Parameters()) p->set_requires_grad(false);
    }
  }

  std::vector<ScriptPart*> parts;  ///< By number; before root: it fills them.
  std::unique_ptr<ScriptPart> root;
};

/// The FullyShard calls of a script, with their settings and parameters.
class ScriptShards {
 public:
  ScriptShards(const FsdpScript& script, const ScriptModel& model)
      : script_(script), model_(model) {
    std::map<const nn::Module*, int> numbers;
    for (size_t i = 0; i < model.parts.size(); ++i) {
      numbers[model.parts[i]] = static_cast<int>(i);
    }
    for (const ShardSpec& shard : script.shards) {
      std::set<int>& below = below_.emplace_back();
      for (const int part : shard.parts) {
        for (const auto& named :
             model.parts[static_cast<size_t>(part)]->NamedModules()) {
          const auto found = numbers.find(named.module);
          if (found != numbers.end()) below.insert(found->second);
        }
      }
    }
    for (int shard = 0; shard < count(); ++shard) trees_.push_back(Tree(shard));
  }

  int count() const { return static_cast<int>(below_.size()); }
  int root() const { return count() - 1; }

  // Returns the shard of part `part`, or the root's.
  int Of(int part) const {
    for (int s = 0; s < count(); ++s) {
      const std::vector<int>& parts = At(s).parts;
      if (std::find(parts.begin(), parts.end(), part) != parts.end()) return s;
    }
    return root();
  }
  const ShardSpec& At(int shard) const {
    return script_.shards[static_cast<size_t>(shard)];
  }

  // Returns the shard, or with `recurse` also those below it in its tree.
  std::vector<int> Reached(int shard, bool recurse) const {
    if (!recurse) return {shard};
    std::vector<int> reached;
    for (int s = 0; s < count(); ++s) {
      if (Contains(shard, s) && TreeOf(s) == TreeOf(shard)) {
        reached.push_back(s);
      }
    }
    return reached;
  }

  // Returns the root of the shard's tree. A replicated part, and what is below
  // it, are separate trees.
  int TreeOf(int shard) const { return trees_[static_cast<size_t>(shard)]; }

  // Returns the shards that own parameters of `part` and below, and those of
  // parts there.
  std::set<int> Touched(int part) const {
    std::set<int> touched;
    nn::Module& module = *model_.parts[static_cast<size_t>(part)];
    for (int s = 0; s < count(); ++s) {
      for (const int of : At(s).parts) {
        for (const nn::NamedModule& named : module.NamedModules()) {
          if (named.module == model_.parts[static_cast<size_t>(of)]) {
            touched.insert(s);
          }
        }
      }
    }
    for (const nn::Parameter* p : module.Parameters())
      touched.insert(Owner(*p));
    return touched;
  }

  int Owner(const nn::Parameter& parameter) const {
    int shard = 0;
    while (!Takes(shard, parameter)) ++shard;
    return shard;
  }

  // Returns whether its gradients are summed over replicas separately.
  bool Replicates(int shard, const nn::Parameter& parameter) const {
    if (At(shard).replicated) return true;
    return script_.replicates() !=
           (At(shard).vectors_elsewhere && parameter.data().ndim() == 1);
  }

  // Returns whether it owns `parameter`: no previous shard does.
  bool Takes(int shard, const nn::Parameter& parameter) const {
    for (size_t i = 0; i < model_.parts.size(); ++i) {
      if (!model_.parts[i]->has_parameters()) continue;
      const int part = static_cast<int>(i);
      for (const nn::Parameter* p : model_.parts[i]->Parameters()) {
        if (p == &parameter &&
            below_[static_cast<size_t>(shard)].count(part) == 0) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  bool Contains(int shard, int other) const {
    return below_[static_cast<size_t>(shard)].count(At(other).parts[0]) != 0;
  }

  int Tree(int shard) const {
    if (At(shard).replicated) return shard;
    // The parent: of all shards that contain it, the one with the fewest parts.
    int above = -1;
    for (int s = 0; s < count(); ++s) {
      if (s == shard || !Contains(s, shard)) continue;
      if (above < 0 || below_[static_cast<size_t>(s)].size() <
                           below_[static_cast<size_t>(above)].size()) {
        above = s;
      }
    }
    return above < 0 || At(above).replicated ? shard : Tree(above);
  }

  const FsdpScript& script_;
  const ScriptModel& model_;
  std::vector<std::set<int>> below_;
  std::vector<int> trees_;
};

/// Iterates over the calls, skips invalid ones and tracks the state of the
/// iteration to decide that. A subclass executes them.
class ScriptRunner {
 public:
  explicit ScriptRunner(const FsdpScript& script)
      : script_(script),
        model_(script.model),
        shards_(script, model_),
        settings_(static_cast<size_t>(shards_.count())) {
    for (int s = 0; s < shards_.count(); ++s) {
      settings_[static_cast<size_t>(s)].factor =
          shards_.At(s).options.reduction.divide_factor.value_or(
              script.data_ranks());
    }
  }
  virtual ~ScriptRunner() = default;

  absl::Status Run() {
    for (call_ = 0; call_ < static_cast<int>(script_.calls.size()); ++call_) {
      CH_RETURN_IF_ERROR(Do(script_.calls[static_cast<size_t>(call_)]));
    }
    CH_RETURN_IF_ERROR(Reset());
    return Compare();
  }

 protected:
  struct Settings {
    bool sync = true;
    bool all_reduce = true;
    bool reshard_after_backward = true;
    bool reduce_unused = false;
    double factor = 1;  // Divisor of gradients.
  };

  struct ForwardCall {
    int batch;
    bool by_run = false;
    bool grad = true;
    int part = 0;
  };
  virtual absl::Status Forward(const ForwardCall& forward) = 0;
  virtual absl::Status BackwardOf(size_t loss) = 0;
  virtual absl::Status ResetIteration() = 0;
  virtual absl::Status Step(bool arms_event) = 0;
  virtual void ZeroGrad() = 0;
  virtual absl::Status Compare() = 0;
  // Accumulates two micro-batches, `batch` and the next.
  virtual absl::Status Accumulate(int batch, bool in_shards) = 0;
  virtual absl::Status Summon(const ScriptCall& call, bool must_succeed) = 0;
  virtual absl::Status Finalize() = 0;
  virtual absl::Status ExpectNoMemory() { return absl::OkStatus(); }
  // Executes a call that has no meaning on one rank.
  virtual absl::Status Tell(const ScriptCall&) { return absl::OkStatus(); }

  const FsdpScript& script() const { return script_; }
  ScriptModel& model() { return model_; }
  const ScriptShards& shards() const { return shards_; }
  const Settings& settings(int shard) const {
    return settings_[static_cast<size_t>(shard)];
  }
  int call() const { return call_; }
  static double FactorOf(const ScriptCall& call) {
    return std::ldexp(1.0, call.value % 3);
  }
  bool manual() const { return manual_; }
  bool event_armed() const { return event_armed_; }
  void SkipAs(int data_rank) {
    for (size_t i = 0; i < model_.parts.size(); ++i) {
      model_.parts[i]->set_skipped((skipped_[i] >> data_rank & 1) != 0);
    }
  }

 private:
  absl::Status Reset() {
    losses_ = 0;
    pending_ = gathered_ = unwaited_ = event_armed_ = false;
    return ResetIteration();
  }

  bool All(bool Settings::*member) const {
    return std::all_of(settings_.begin(), settings_.end(),
                       [member](const Settings& s) { return s.*member; });
  }

  void Reduced() {
    pending_ = !All(&Settings::sync) || !All(&Settings::all_reduce);
  }

  absl::Status Do(const ScriptCall& call) {
    switch (call.kind) {
      case ScriptCall::Kind::kForward:
        if (losses_ == 2) return absl::OkStatus();
        ++losses_;
        gathered_ = true;
        event_armed_ = false;
        return Forward({.batch = call.value % 50, .by_run = call.on});
      case ScriptCall::Kind::kForwardNoGrad:
        event_armed_ = false;
        return Forward(
            {.batch = call.value % 50, .by_run = call.on, .grad = false});
      case ScriptCall::Kind::kForwardPart:
        if (call.on) ++losses_;
        return Forward(
            {.batch = call.value, .grad = call.on, .part = call.part});
      case ScriptCall::Kind::kExpectNoMemory:
        return ExpectNoMemory();
      case ScriptCall::Kind::kNegate: {
        const NoGrad no_grad;
        for (nn::Parameter* p : model_.root->Parameters()) {
          MulInPlace(LocalTensor(p->data()), -1);
        }
        return absl::OkStatus();
      }
      case ScriptCall::Kind::kBackward:
        return DoBackward(call);
      case ScriptCall::Kind::kDropLosses:
        return losses_ > 0 ? Reset() : absl::OkStatus();
      case ScriptCall::Kind::kStep:
        if (unwaited_) return absl::OkStatus();
        // Otherwise shards would change while parameters are gathered or in
        // graphs.
        if (losses_ > 0 || gathered_) CH_RETURN_IF_ERROR(Reset());
        event_armed_ = event_armed_ || call.on;
        return Step(event_armed_);
      case ScriptCall::Kind::kZeroGrad:
        if (!unwaited_) ZeroGrad();
        return absl::OkStatus();
      case ScriptCall::Kind::kCompare:
        return unwaited_ ? absl::OkStatus() : Compare();
      case ScriptCall::Kind::kSummon:
        if (unwaited_) return absl::OkStatus();
        if (call.on && losses_ > 0) CH_RETURN_IF_ERROR(Reset());
        return Summon(call, losses_ == 0 && !gathered_ && !pending_);
      case ScriptCall::Kind::kUnshard:
        gathered_ = true;
        event_armed_ = false;
        return Tell(call);
      case ScriptCall::Kind::kFinalize:
        unwaited_ = false;
        Reduced();
        return Finalize();
      case ScriptCall::Kind::kReset:
        return Reset();
      case ScriptCall::Kind::kAccumulate:
        // FSDP refuses while gradients await their reduction.
        if (losses_ > 0 || !All(&Settings::sync)) return absl::OkStatus();
        event_armed_ = false;
        CH_RETURN_IF_ERROR(Accumulate(call.value % 50, call.on));
        BackwardHasRun();
        return absl::OkStatus();
      default:
        return DoSetting(call);
    }
  }

  absl::Status DoBackward(const ScriptCall& call) {
    if (losses_ == 0) return absl::OkStatus();
    const auto loss = static_cast<size_t>(call.value % losses_);
    --losses_;
    BackwardHasRun();
    return BackwardOf(loss);
  }

  void BackwardHasRun() {
    gathered_ = !last_ || !All(&Settings::reshard_after_backward);
    if (manual_) {
      pending_ = true;
    } else {
      unwaited_ = !last_;
      Reduced();
    }
  }

  absl::Status DoSetting(const ScriptCall& call) {
    // A pending gradient is divided by the divisor at its time.
    if (call.kind == ScriptCall::Kind::kDivide && (losses_ > 0 || pending_)) {
      return absl::OkStatus();
    }
    if (call.kind == ScriptCall::Kind::kReduceUnused &&
        (losses_ > 0 || gathered_)) {
      CH_RETURN_IF_ERROR(Reset());
    }
    for (const int shard :
         shards_.Reached(shards_.Of(call.part), call.recurse)) {
      Settings& settings = settings_[static_cast<size_t>(shard)];
      if (call.kind == ScriptCall::Kind::kSync) settings.sync = call.on;
      if (call.kind == ScriptCall::Kind::kAllReduce)
        settings.all_reduce = call.on;
      if (call.kind == ScriptCall::Kind::kReshardAfterBackward) {
        settings.reshard_after_backward = call.on;
      }
      if (call.kind == ScriptCall::Kind::kReduceUnused) {
        settings.reduce_unused = call.on;
      }
      if (call.kind == ScriptCall::Kind::kDivide) {
        settings.factor = FactorOf(call);
      }
    }
    switch (call.kind) {
      case ScriptCall::Kind::kReduceUnused:
        for (size_t i = 0; i < skipped_.size(); ++i) {
          if (!MayDiffer(static_cast<int>(i)) && skipped_[i] != AllRanks()) {
            skipped_[i] = 0;
          }
        }
        break;
      case ScriptCall::Kind::kUnshardInBackward:
        for (const int part : shards_.At(shards_.Of(call.part)).parts) {
          if (script_part(part).form != PartSpec::Form::kShift) {
            return absl::OkStatus();
          }
        }
        break;
      case ScriptCall::Kind::kLastBackward:
        last_ = call.on;
        break;
      case ScriptCall::Kind::kManual:
        manual_ = call.on;
        break;
      case ScriptCall::Kind::kFreeze:
        return Freeze(call);
      case ScriptCall::Kind::kSkip: {
        const int last = static_cast<int>(model_.parts.size()) - 1;
        if (call.part == 0 || call.part == last) return absl::OkStatus();
        uint32_t& ranks = skipped_[static_cast<size_t>(call.part)];
        if (MayDiffer(call.part)) {
          ranks = static_cast<uint32_t>(call.value) & AllRanks();
        } else {
          ranks = call.on ? AllRanks() : 0;
        }
        return absl::OkStatus();
      }
      default:
        break;
    }
    return Tell(call);
  }

  absl::Status Freeze(const ScriptCall& call) {
    if (losses_ > 0) return absl::OkStatus();
    const std::vector<nn::Parameter*> all = model_.root->Parameters();
    const size_t index = static_cast<size_t>(call.value) % all.size();
    // The head is always trained, and ignored parameters are always frozen.
    for (const nn::Parameter* p : model_.parts.back()->Parameters()) {
      if (p == all[index]) return absl::OkStatus();
    }
    const bool ignores = std::any_of(
        script_.shards.begin(), script_.shards.end(),
        [](const ShardSpec& shard) { return shard.ignores_frozen; });
    if (ignores && frozen_[index]) return absl::OkStatus();
    all[index]->set_requires_grad(!call.on);
    return absl::OkStatus();
  }

  // Returns whether ranks may differ in running `part`. They may not if it is
  // all that runs of a tree.
  bool MayDiffer(int part) const {
    for (const int shard : shards_.Touched(part)) {
      if (!settings(shard).reduce_unused) return false;
      if (shards_.TreeOf(shard) != shard || shard == shards_.root()) continue;
      for (const int root : shards_.At(shard).parts) {
        if (IsWithin(root, part)) return false;
      }
    }
    return true;
  }
  bool IsWithin(int inner, int outer) const {
    for (const nn::NamedModule& named :
         model_.parts[static_cast<size_t>(outer)]->NamedModules()) {
      if (named.module == model_.parts[static_cast<size_t>(inner)]) return true;
    }
    return false;
  }
  const PartSpec& script_part(int part) const {
    return model_.parts[static_cast<size_t>(part)]->spec();
  }

  uint32_t AllRanks() const { return (1u << script_.data_ranks()) - 1; }

  std::vector<bool> FrozenAtFirst() {
    std::vector<bool> frozen;
    for (const nn::Parameter* p : model_.root->Parameters()) {
      frozen.push_back(!p->requires_grad());
    }
    return frozen;
  }

  const FsdpScript& script_;
  ScriptModel model_;
  const ScriptShards shards_;
  std::vector<Settings> settings_;  // By shard.
  const std::vector<bool> frozen_ = FrozenAtFirst();
  std::vector<uint32_t> skipped_ = std::vector<uint32_t>(
      model_.parts.size(), 0);  // By part: ranks that skip it.
  int call_ = 0;
  int losses_ = 0;         // Without their backward so far.
  bool pending_ = false;   // Gradients may await a reduction.
  bool gathered_ = false;  // Parameters may be gathered.
  bool unwaited_ = false;  // The compute stream has not waited for reductions.
  bool event_armed_ = false;
  bool last_ = true;
  bool manual_ = false;
};

inline std::vector<double> ToDoubles(const Tensor& t) {
  if (t.device().is_meta()) return {};  // A dry run.
  return t.ToVector<double>();
}

inline Tensor ScriptLoss(nn::Module& model, const Tensor& x) {
  return Sum(ToDType(model.Forward(x), kFloat64));
}

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_FSDP_SCRIPT_RUNNER_H_
