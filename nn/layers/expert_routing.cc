// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "crosshatch/base/check.h"

namespace crosshatch::nn {
namespace {

// Returns the index of the local run that contains a choice.
size_t RunOf(size_t choice, size_t choices, const BatchOrder& order) {
  return choice * static_cast<size_t>(order.runs_here) / choices;
}

// Returns how many choices each expert keeps per run and batch rank, in the
// layout of `counts`.
std::vector<int64_t> KeptOf(absl::Span<const int64_t> counts, size_t experts,
                            std::optional<int64_t> capacity,
                            const BatchOrder& order) {
  std::vector<int64_t> kept(counts.begin(), counts.end());
  if (!capacity.has_value()) return kept;
  std::vector<int64_t> room(experts, *capacity);
  const auto ranks = static_cast<size_t>(order.ranks);
  const auto runs = static_cast<size_t>(order.runs);
  for (size_t group = 0; group < kept.size(); group += ranks * runs * experts) {
    for (size_t i = 0; i < runs * ranks; ++i) {
      const size_t run = i / ranks;
      const size_t rank = i % ranks;
      for (size_t e = 0; e < experts; ++e) {
        int64_t& here = kept[group + (rank * runs + run) * experts + e];
        here = std::min(here, room[e]);
        room[e] -= here;
      }
    }
  }
  return kept;
}

// Returns the choices sorted by expert, each run truncated to `kept`.
std::vector<int64_t> InOrderOfExperts(absl::Span<const int64_t> choices,
                                      absl::Span<const int64_t> kept,
                                      size_t experts, const BatchOrder& order) {
  std::vector<int64_t> left(kept.begin(), kept.end());
  std::vector<std::vector<int64_t>> of_expert(experts);
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto e = static_cast<size_t>(choices[i]);
    int64_t& room = left[RunOf(i, choices.size(), order) * experts + e];
    if (room == 0) continue;  // The expert is full.
    --room;
    of_expert[e].push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> ordered;
  for (const std::vector<int64_t>& some : of_expert) {
    ordered.insert(ordered.end(), some.begin(), some.end());
  }
  return ordered;
}

// Returns the sums over the runs of each batch rank, by expert.
std::vector<int64_t> SumOfRuns(absl::Span<const int64_t> counts, size_t experts,
                               const BatchOrder& order) {
  const size_t of_rank = static_cast<size_t>(order.runs) * experts;
  std::vector<int64_t> sums(counts.size() / static_cast<size_t>(order.runs), 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    sums[i / of_rank * experts + i % experts] += counts[i];
  }
  return sums;
}

}  // namespace

std::vector<int64_t> CountChoices(absl::Span<const int64_t> choices,
                                  int64_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
  for (const int64_t choice : choices) {
    CH_CHECK(choice >= 0 && choice < experts)
        << "a token chose expert " << choice << " of " << experts;
    ++counts[static_cast<size_t>(choice)];
  }
  return counts;
}

std::vector<int64_t> CountRuns(absl::Span<const int64_t> choices,
                               int64_t experts, const BatchOrder& order) {
  std::vector<int64_t> counts;
  for (int64_t run = 0; run < order.runs_here; ++run) {
    const size_t size = choices.size() / static_cast<size_t>(order.runs_here);
    const std::vector<int64_t> of_run = CountChoices(
        choices.subspan(static_cast<size_t>(run) * size, size), experts);
    counts.insert(counts.end(), of_run.begin(), of_run.end());
  }
  counts.resize(static_cast<size_t>(order.runs * experts), 0);
  return counts;
}

int64_t ExpertCapacity(double factor, int64_t tokens, int64_t choices,
                       int64_t experts) {
  return static_cast<int64_t>(
      std::ceil(factor * static_cast<double>(tokens * choices) /
                static_cast<double>(experts)));
}

ExpertRoutes RouteChoices(absl::Span<const int64_t> choices,
                          absl::Span<const int64_t> counts, int64_t experts,
                          const ExpertOwners& owners,
                          std::optional<int64_t> capacity,
                          const BatchOrder& order) {
  const auto width = static_cast<size_t>(experts);
  const auto row_of = [width](const std::vector<int64_t>& table, int rank) {
    return absl::MakeConstSpan(table).subspan(static_cast<size_t>(rank) * width,
                                              width);
  };
  const ExpertOwners::Owner& self =
      owners.owners[static_cast<size_t>(owners.self)];
  CH_CHECK_EQ(owners.owners.back().first + owners.owners.back().count, experts)
      << "experts of all owners";
  const std::vector<int64_t> own = CountRuns(choices, experts, order);
  const size_t here = static_cast<size_t>(self.batch_rank) * own.size();
  CH_CHECK(std::equal(own.begin(), own.end(),
                      counts.begin() + static_cast<ptrdiff_t>(here)))
      << "the counts of rank " << self.batch_rank
      << " of the batch are not those of its choices";

  const std::vector<int64_t> by_run = KeptOf(counts, width, capacity, order);
  const std::vector<int64_t> kept = SumOfRuns(by_run, width, order);
  ExpertRoutes routes;
  routes.kept = InOrderOfExperts(
      choices, absl::MakeConstSpan(by_run).subspan(here, own.size()), width,
      order);

  RowExchange& exchange = routes.exchange;
  for (const ExpertOwners::Owner& owner : owners.owners) {
    int64_t rows = 0;
    for (int64_t e = owner.first; e < owner.first + owner.count; ++e) {
      rows += row_of(kept, self.batch_rank)[static_cast<size_t>(e)];
    }
    exchange.give.push_back({{exchange.rows_given, rows}});
    exchange.rows_given += rows;
  }

  exchange.take.resize(owners.owners.size());
  routes.offsets.push_back(0);
  for (int64_t e = self.first; e < self.first + self.count; ++e) {
    for (size_t from = 0; from < owners.owners.size(); ++from) {
      const int64_t rows =
          row_of(kept, owners.owners[from].batch_rank)[static_cast<size_t>(e)];
      if (rows > 0) {
        exchange.take[from].push_back({exchange.rows_taken, rows});
        exchange.rows_taken += rows;
      }
    }
    routes.offsets.push_back(exchange.rows_taken);
  }
  return routes;
}

}  // namespace crosshatch::nn
