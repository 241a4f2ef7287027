// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/mixture_of_experts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/row_exchange.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

constexpr const char* kName = "mixture_of_experts";

// Returns a replicated parameter for the rank's own tokens. Its gradient is the
// sum over the ranks.
Tensor ForOwnTokens(const Tensor& parameter) {
  if (!parameter.is_distributed()) return parameter;
  Layout sums = LayoutOf(parameter);
  CH_CHECK(sums.is_replicated())
      << kName << ": the router " << parameter.Describe() << " is split";
  for (int axis = 0; axis < sums.mesh().ndim(); ++axis) {
    sums = sums.WithPartial(axis, ReduceOp::kSum);
  }
  return ToLocal(parameter, sums);
}

// Returns the rank's own experts, which receive the tokens of all ranks.
Tensor OwnExperts(const Tensor& parameter) {
  return parameter.is_distributed() ? ToLocal(parameter, LayoutOf(parameter))
                                    : parameter;
}

Tensor AsRows(const Tensor& x) {
  return Reshape(x, {x.numel() / x.size(-1), x.size(-1)});
}

// Returns out with out[t] = the sum of the rows r for which tokens[r] is t, in
// order.
Tensor SumByToken(const Tensor& rows, const Tensor& tokens, int64_t count) {
  return Apply1(GatherGradOp({.dim = 0, .bound = count}, count),
                {Expand(Unsqueeze(tokens, 1), rows.sizes()), rows});
}

// Returns the index of this rank in `mesh`, in row-major order.
int IndexOn(const DeviceMesh& mesh, int world_rank) {
  const absl::Span<const int> ranks = mesh.layout().ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

// Returns whether ranks of `shared` are consecutive in `batch`, as those of its
// last axis are.
bool IsLastOf(const DeviceMesh& batch, const DeviceMesh& shared) {
  const absl::Span<const int> ranks = shared.layout().ranks();
  const int first = IndexOn(batch, ranks[0]);
  if (first < 0 || first % shared.size() != 0) return false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (IndexOn(batch, ranks[i]) != first + static_cast<int>(i)) return false;
  }
  return true;
}

// Returns a module of the tree of `experts`, not a mixture itself, which splits
// a parameter over `mesh` in its forward, or null.
const Module* SplitOver(Module& experts, const DeviceMesh& mesh) {
  for (const NamedModule& named : RootOf(experts).NamedModules()) {
    if (dynamic_cast<MixtureOfExperts*>(named.module) != nullptr) continue;
    for (const auto& [name, parameter] : named.module->own_parameters()) {
      const Tensor& whole = parameter->gathered().defined()
                                ? parameter->gathered()
                                : parameter->data();
      if (whole.is_distributed() && MeshOf(whole) == mesh &&
          !LayoutOf(whole).is_replicated()) {
        return named.module;
      }
    }
  }
  return nullptr;
}

}  // namespace

/// The router's result for the tokens [n, dim].
struct MixtureOfExperts::Choices {
  Tensor probabilities;          ///< [n, experts]
  Tensor weights;                ///< [n, choices]
  std::vector<int64_t> experts;  ///< [n, choices]
};

MixtureOfExperts::MixtureOfExperts(const MixtureOfExpertsOptions& options)
    : options_(options) {
  const auto& [dim, hidden, experts, choices, capacity, normalize, stddev] =
      options_;
  CH_CHECK(dim > 0 && hidden > 0 && choices > 0 && experts >= choices)
      << kName << " of dim " << dim << ", hidden " << hidden << ": " << choices
      << " choices of " << experts << " experts";
  const Initializer normal = init::Normal(stddev);
  router_ = AddParameter("router", {experts, dim}, normal);
  gate_ = AddParameter("gate_proj", {experts, dim, hidden}, normal);
  up_ = AddParameter("up_proj", {experts, dim, hidden}, normal);
  down_ = AddParameter("down_proj", {experts, hidden, dim}, normal);
  owners_.owners = {{.batch_rank = 0, .first = 0, .count = experts}};
}

absl::Status MixtureOfExperts::Place(ExpertPlacement placement) {
  if (!placement.batch.has_value()) placement.batch = placement.experts;
  if (placement.shared.has_value() && placement.shared->ndim() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kName, ": tokens are shared along one axis, not those of ",
                     placement.shared->ToString()));
  }
  ExpertOwners owners;
  if (placement.batch.has_value()) {
    const DeviceMesh& batch = *placement.batch;
    const int world_rank = batch.world().world_rank();
    const int here = IndexOn(batch, world_rank);
    owners.owners = {{.batch_rank = here, .count = options_.experts}};
    if (here < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(kName, ": rank ", world_rank, " is not on ",
                       batch.ToString(), ", the batch's mesh"));
    }
    if (placement.shared.has_value() && !IsLastOf(batch, *placement.shared)) {
      return absl::InvalidArgumentError(absl::StrCat(
          kName, ": tokens are shared along ", placement.shared->ToString(),
          ", whose ranks do not follow each other on ", batch.ToString(),
          ", the batch's mesh; flatten its axes with the shared axis last"));
    }
    if (placement.experts.has_value()) {
      const DeviceMesh& mesh = *placement.experts;
      const std::vector<Interval> parts =
          Layout::Replicated(mesh.layout(), 1)
              .WithShard(0, 0)
              .DimIntervals(0, options_.experts);
      if (mesh.ndim() != 1 || !mesh.coordinate().has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(
            kName, ": experts need a mesh of one axis that contains rank ",
            world_rank, ", not ", mesh.ToString()));
      }
      owners.owners.clear();
      owners.self = *mesh.index(0);
      for (size_t i = 0; i < parts.size(); ++i) {
        const int rank = mesh.layout().ranks()[i];
        const int index = IndexOn(batch, rank);
        if (index < 0) {
          return absl::InvalidArgumentError(absl::StrCat(
              kName, ": rank ", rank, " has experts, by ", mesh.ToString(),
              ", and no part of the batch, which is on ", batch.ToString()));
        }
        owners.owners.push_back({.batch_rank = index,
                                 .first = parts[i].begin,
                                 .count = parts[i].end - parts[i].begin});
      }
    }
  } else {
    owners = owners_;
  }
  owners_ = std::move(owners);
  placement_ = std::move(placement);
  return absl::OkStatus();
}

TensorList MixtureOfExperts::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << kName;
  const Tensor& x = inputs[0];
  CH_CHECK(x.ndim() > 0 && x.size(-1) == options_.dim &&
           IsFloatingPoint(x.dtype()))
      << kName << " of " << x.Describe() << ": tokens of " << options_.dim
      << " features";
  CheckPlaced();
  if (placement_.shared.has_value()) return ForwardShared(x);
  CH_CHECK(!x.is_distributed())
      << kName << " of " << x.Describe()
      << ": the tokens are distributed; ExpertParallelOptions::shared "
      << "(tp/expert_parallel.h) names the axis that they are on";
  CompareTokens(x);
  TensorList outputs = ForwardTokens(AsRows(x));
  outputs[0] = Reshape(outputs[0], x.sizes());
  return outputs;
}

void MixtureOfExperts::CheckPlaced() const {
  if (placement_.batch.has_value()) return;
  const Module* splits = this;
  while (splits != nullptr && !splits->splits_batch()) {
    splits = splits->parent();
  }
  CH_CHECK(splits == nullptr)
      << kName << " " << *label() << " does not know the batch, over which "
      << "balance and capacity are computed: " << *splits->label()
      << " is sharded, so each rank has rows of its own; call "
      << "MixtureOfExperts::Place({.batch = mesh}) with the mesh of FullyShard "
      << "before the first forward, or give it a style, tp::ExpertParallel";
}

void MixtureOfExperts::CompareTokens(const Tensor& x) {
  if (compared_tokens_ || !placement_.experts.has_value()) return;
  compared_tokens_ = true;
  RankContext& context = RankContext::Current();
  const DeviceMesh& mesh = *placement_.experts;
  const Module* split = SplitOver(*this, mesh);
  if (split == nullptr || mesh.size() == 1 || context.dry_run()) return;
  const absl::Status alike = CompareReplicas(
      kName, x, mesh, Layout::Replicated(mesh.layout(), x.ndim()), x.sizes());
  if (!alike.ok() || x.numel() == 0) return;
  context.Poison(absl::FailedPreconditionError(absl::StrCat(
      kName, " ", *label(), ": all ranks of ", mesh.ToString(),
      " have the same tokens, because of tensor parallelism of module ",
      *split->label(),
      ", but treat them as different ones; set ExpertParallelOptions::shared "
      "(tp/expert_parallel.h) to that axis")));
}

TensorList MixtureOfExperts::ForwardShared(const Tensor& x) {
  const DeviceMesh& mesh = *placement_.shared;
  const Layout whole = Layout::Replicated(mesh.layout(), x.ndim());
  const bool plain = !x.is_distributed();
  const Tensor given =
      plain ? FromLocal(x, mesh, whole, x.sizes(), /*grad_layout=*/whole) : x;
  const Layout& layout = LayoutOf(given);
  CH_CHECK(layout.mesh() == mesh.layout() && !layout.is_partial() &&
           !layout.is_sharded(x.ndim() - 1))
      << kName << " of " << x.Describe()
      << ": tokens must be replicated, or split by whole tokens, on "
      << mesh.ToString();

  // An input that is split already keeps its shards as shares.
  const bool split = layout.is_replicated();
  const Tensor spread = split ? AsRows(given) : given;
  const Layout shares =
      split ? Layout::Replicated(mesh.layout(), 2).WithShard(0, 0) : layout;
  const Tensor local = ToLocal(Redistribute(spread, shares), shares);
  std::optional<int64_t> runs;
  if (!split && !layout.is_sharded(0)) {
    runs = 1;
    for (int d = 0; !layout.is_sharded(d); ++d) *runs *= given.size(d);
  }
  TensorList outputs = ForwardTokens(AsRows(local), runs);

  Tensor y = FromLocal(Reshape(outputs[0], local.sizes()), mesh, shares,
                       spread.sizes(), /*grad_layout=*/shares);
  if (split) {
    y = Reshape(Redistribute(y, Layout::Replicated(mesh.layout(), 2)),
                x.sizes());
  }
  const Layout number = Layout::Replicated(mesh.layout(), 0);
  const Tensor balance = Redistribute(
      FromLocal(outputs[1], mesh, number.WithPartial(0, ReduceOp::kSum), {},
                /*grad_layout=*/number),
      number);
  if (!plain) return {y, balance};
  return {ToLocal(y, whole), ToLocal(balance, number)};
}

MixtureOfExperts::Choices MixtureOfExperts::Choose(const Tensor& tokens) {
  const int64_t count = options_.choices;
  const Tensor router = ForOwnTokens(router_->Get());
  const Tensor logits =
      crosshatch::Linear(ToDType(tokens, router.dtype()), router);
  Choices choices;
  choices.probabilities = Softmax(ToDType(logits, kFloat32));
  const Sorted top = TopK(choices.probabilities, count);
  choices.weights = options_.normalize_weights
                        ? Div(top.values, Sum(top.values, {1}, true))
                        : top.values;
  RankContext& context = RankContext::Current();
  if (!context.dry_run()) choices.experts = top.indices.ToVector<int64_t>();
  if (context.dry_run() || context.poisoned()) {
    // A dry run has no data and assumes an even load.
    choices.experts.resize(static_cast<size_t>(tokens.size(0) * count));
    for (size_t i = 0; i < choices.experts.size(); ++i) {
      choices.experts[i] = static_cast<int64_t>(i) % options_.experts;
    }
  }
  return choices;
}

BatchOrder MixtureOfExperts::OrderOfBatch(std::optional<int64_t> runs) {
  // Without a capacity the order does not matter.
  if (!runs.has_value() || !options_.capacity_factor.has_value()) return {};
  BatchOrder order = {.ranks = placement_.shared->size(), .runs_here = *runs};
  for (const int64_t others : OfBatch({*runs})) {
    order.runs = std::max(order.runs, others);
  }
  return order;
}

std::vector<int64_t> MixtureOfExperts::OfBatch(
    const std::vector<int64_t>& own) {
  if (!placement_.batch.has_value()) return own;
  absl::StatusOr<std::vector<int64_t>> all =
      GatherNumbers(own, *placement_.batch);
  if (all.ok()) return *std::move(all);
  RankContext::Current().Poison(all.status());
  // A dry run skips the computation and only needs the sizes.
  std::vector<int64_t> alike;
  for (int r = 0; r < placement_.batch->size(); ++r) {
    alike.insert(alike.end(), own.begin(), own.end());
  }
  return alike;
}

Tensor MixtureOfExperts::RunExperts(const Tensor& rows, const Shape& offsets) {
  const Tensor gate = OwnExperts(gate_->Get());
  const Tensor x = ToDType(rows, gate.dtype());
  const Tensor hidden =
      SwiGlu(GroupedMatMul(x, gate, offsets),
             GroupedMatMul(x, OwnExperts(up_->Get()), offsets));
  return GroupedMatMul(hidden, OwnExperts(down_->Get()), offsets);
}

TensorList MixtureOfExperts::ForwardTokens(const Tensor& tokens,
                                           std::optional<int64_t> runs) {
  const int64_t experts = options_.experts;
  const int64_t count = tokens.size(0);
  const Choices choices = Choose(tokens);
  const BatchOrder order = OrderOfBatch(runs);
  const std::vector<int64_t> counts =
      OfBatch(CountRuns(choices.experts, experts, order));
  std::vector<int64_t> of_expert(static_cast<size_t>(experts), 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    of_expert[i % of_expert.size()] += counts[i];
  }
  int64_t all_choices = 0;
  for (const int64_t n : of_expert) all_choices += n;
  std::vector<float> shares(static_cast<size_t>(experts), 0);
  for (size_t e = 0; e < shares.size() && all_choices > 0; ++e) {
    shares[e] =
        static_cast<float>(of_expert[e]) / static_cast<float>(all_choices);
  }
  const int64_t all_tokens = all_choices / options_.choices;

  std::optional<int64_t> capacity;
  if (options_.capacity_factor.has_value()) {
    capacity = ExpertCapacity(*options_.capacity_factor, all_tokens,
                              options_.choices, experts);
  }
  const ExpertRoutes routes =
      RouteChoices(choices.experts, counts, experts, owners_, capacity, order);
  const auto kept = static_cast<int64_t>(routes.kept.size());
  std::vector<int64_t> token_of(routes.kept);
  for (int64_t& choice : token_of) choice /= options_.choices;
  const Tensor index = FromValues<int64_t>({kept}, token_of);

  Tensor rows = IndexSelect(tokens, 0, index);
  if (placement_.experts.has_value()) {
    rows = AllToAllRows(rows, routes.exchange, *placement_.experts);
  }
  Tensor given = RunExperts(rows, routes.offsets);
  if (placement_.experts.has_value()) {
    given =
        AllToAllRows(given, routes.exchange.Reversed(), *placement_.experts);
  }
  const Tensor weights =
      IndexSelect(Reshape(choices.weights, {count * options_.choices}), 0,
                  FromValues<int64_t>({kept}, routes.kept));
  const Tensor sums = SumByToken(
      Mul(ToDType(given, kFloat32), Unsqueeze(weights, 1)), index, count);

  const Tensor balance = Sum(Mul(Sum(choices.probabilities, {0}),
                                 FromValues<float>({experts}, shares)));
  // Ranks with tokens of their own. The batch's loss is the mean of theirs.
  const int data_ranks =
      placement_.batch.has_value()
          ? placement_.batch->size() /
                (placement_.shared.has_value() ? placement_.shared->size() : 1)
          : 1;
  const double scale = all_tokens == 0
                           ? 0
                           : static_cast<double>(experts * data_ranks) /
                                 static_cast<double>(all_tokens);
  return {ToDType(sums, tokens.dtype()), Mul(balance, scale)};
}

}  // namespace crosshatch::nn
