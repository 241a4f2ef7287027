// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/tests/fsdp_script.h"
#include "crosshatch/tests/fsdp_script_runner.h"

namespace crosshatch {
namespace {

// Runs all ranks in turn on plain tensors. For each parameter it tracks
// unreduced gradients, those that await the sum over replicas, and visible
// ones.
class Oracle final : public ScriptRunner {
 public:
  Oracle(const FsdpScript& script, std::vector<Summoned> summoned,
         std::vector<ScriptResult>& results)
      : ScriptRunner(script),
        summoned_(std::move(summoned)),
        results_(results),
        books_(model().root->Parameters().size()) {
    const std::vector<nn::Parameter*> all = model().root->Parameters();
    for (size_t i = 0; i < all.size(); ++i) {
      books_[i].shard = shards().Owner(*all[i]);
      books_[i].replicates = shards().Replicates(books_[i].shard, *all[i]);
    }
  }

 protected:
  absl::Status Forward(const ForwardCall& forward) override {
    const GradModeScope mode(forward.grad);
    std::vector<Tensor> losses;
    for (int part = 0; part < script().data_ranks(); ++part) {
      SkipAs(part);
      losses.push_back(ScriptLoss(
          *model().parts[static_cast<size_t>(forward.part)],
          BatchOf(part, script().data_ranks(), forward.batch, kScriptDim)));
      for (int tp = 0; tp < script().tp_ranks(); ++tp) {
        Observe(part * script().tp_ranks() + tp, "loss",
                ToDoubles(losses.back().Detach()));
      }
    }
    if (forward.grad) losses_.push_back(std::move(losses));
    return absl::OkStatus();
  }

  absl::Status BackwardOf(size_t loss) override {
    for (const Tensor& of_rank : losses_[loss]) {
      CH_RETURN_IF_ERROR(Backward(of_rank));
    }
    losses_.erase(losses_.begin() + static_cast<ptrdiff_t>(loss));
    const std::vector<nn::Parameter*> all = model().root->Parameters();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i]->grad().defined()) continue;
      Add(books_[i].full, ToDoubles(all[i]->grad()));
      all[i]->set_grad(Tensor());
    }
    if (!manual()) Reduce();
    return absl::OkStatus();
  }

  absl::Status Accumulate(int batch, bool /*in_shards*/) override {
    for (int i = 0; i < 2; ++i) {
      CH_RETURN_IF_ERROR(Forward({.batch = batch + i}));
      CH_RETURN_IF_ERROR(BackwardOf(losses_.size() - 1));
    }
    return absl::OkStatus();
  }

  absl::Status ResetIteration() override {
    losses_.clear();
    for (Book& book : books_) book.full = book.partial = std::nullopt;
    return absl::OkStatus();
  }

  absl::Status Step(bool /*arms_event*/) override {
    const std::vector<nn::Parameter*> all = model().root->Parameters();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!books_[i].visible.has_value()) continue;
      const std::vector<double>& values = *books_[i].visible;
      all[i]->set_grad(
          FromValues<float>(all[i]->data().sizes(),
                            std::vector<float>(values.begin(), values.end())));
    }
    fsdp::IntegerDescent(*model().root);
    ZeroGrad();
    return absl::OkStatus();
  }

  void ZeroGrad() override {
    for (Book& book : books_) book.visible = std::nullopt;
  }

  absl::Status Compare() override {
    const std::vector<nn::NamedParameter> all = model().root->NamedParameters();
    for (int rank = 0; rank < script().ranks(); ++rank) {
      for (size_t i = 0; i < all.size(); ++i) {
        Observe(rank, all[i].name, ToDoubles(all[i].parameter->data()));
        Observe(rank, absl::StrCat("gradient of ", all[i].name), Visible(i));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Summon(const ScriptCall& call, bool /*must_succeed*/) override {
    const Summoned& summoned = summoned_[next_summoned_++];
    for (int rank = 0; rank < script().ranks(); ++rank) {
      results_[static_cast<size_t>(rank)].summoned.push_back(summoned);
    }
    const bool on_first_alone = !call.on && (call.value & 2) != 0;
    const bool with_grads = (call.value & 8) != 0;
    for (const auto& [name, p, index] : Entries(call, summoned)) {
      for (int rank = 0; rank < script().ranks(); ++rank) {
        if (on_first_alone && rank > 0) continue;
        Observe(rank, absl::StrCat("summoned ", name), ToDoubles(p->data()));
        if (!with_grads) continue;
        Observe(rank, absl::StrCat("summoned gradient of ", name),
                Visible(index));
      }
      const NoGrad no_grad;
      if (call.on) MulInPlace(p->data(), -1);
    }
    return absl::OkStatus();
  }

  absl::Status Finalize() override {
    Reduce();
    return absl::OkStatus();
  }

 private:
  using Values = std::optional<std::vector<double>>;
  struct Book {
    int shard = 0;
    bool replicates = false;
    Values full;
    Values partial;
    Values visible;
  };
  struct Entry {
    std::string name;
    nn::Parameter* parameter;
    size_t index;
  };

  void Observe(int rank, std::string what, std::vector<double> values) {
    results_[static_cast<size_t>(rank)].observations.push_back(
        {call(), std::move(what), std::move(values)});
  }

  static void Add(Values& to, const std::vector<double>& values) {
    if (!to.has_value()) to.emplace(values.size());
    for (size_t i = 0; i < values.size(); ++i) (*to)[i] += values[i];
  }

  std::vector<double> Visible(size_t i) {
    if (books_[i].visible.has_value()) return *books_[i].visible;
    return std::vector<double>(
        static_cast<size_t>(model().root->Parameters()[i]->data().numel()));
  }

  // Returns the summoned parameters by their names in the part.
  std::vector<Entry> Entries(const ScriptCall& call, const Summoned& summoned) {
    std::map<const nn::Parameter*, std::string> names;
    for (const nn::NamedParameter& named :
         model().parts[static_cast<size_t>(call.part)]->NamedParameters()) {
      names[named.parameter] = named.name;
    }
    const std::vector<nn::Parameter*> all = model().root->Parameters();
    std::vector<Entry> entries;
    for (const int index : summoned.parameters) {
      nn::Parameter* const p = all[static_cast<size_t>(index)];
      entries.push_back({names[p], p, static_cast<size_t>(index)});
    }
    return entries;
  }

  void Reduce() {
    for (Book& book : books_) {
      const Settings& of = settings(book.shard);
      if (!of.sync) continue;
      Values& to =
          book.replicates && !of.all_reduce ? book.partial : book.visible;
      if (book.full.has_value()) {
        for (double& value : *book.full)
          value *= script().loss_factor / of.factor;
        Add(to, *std::exchange(book.full, {}));
      }
      if (&to == &book.visible && book.partial.has_value()) {
        Add(to, *std::exchange(book.partial, {}));
      }
    }
  }

  const std::vector<Summoned> summoned_;
  std::vector<ScriptResult>& results_;
  std::vector<Book> books_;  // By parameter.
  std::vector<std::vector<Tensor>> losses_;
  size_t next_summoned_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<ScriptResult>> RunOracle(
    const FsdpScript& script, const std::vector<Summoned>& summoned) {
  std::vector<ScriptResult> results(static_cast<size_t>(script.ranks()));
  Oracle runner(script, summoned, results);
  CH_RETURN_IF_ERROR(runner.Run());
  return results;
}

}  // namespace crosshatch
