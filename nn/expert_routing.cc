// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "crosshatch/base/check.h"

namespace crosshatch::nn {
namespace {

// How many choices an expert keeps of each batch rank: rows as `counts`.
std::vector<int64_t> KeptOf(absl::Span<const int64_t> counts, size_t experts,
                            std::optional<int64_t> capacity) {
  std::vector<int64_t> kept(counts.begin(), counts.end());
  if (!capacity.has_value()) return kept;
  std::vector<int64_t> room(experts, *capacity);
  for (size_t i = 0; i < kept.size(); ++i) {
    int64_t& left = room[i % experts];
    kept[i] = std::min(kept[i], left);
    left -= kept[i];
  }
  return kept;
}

// The choices by expert, those of each cut to what `kept` says of this rank.
std::vector<int64_t> InOrderOfExperts(absl::Span<const int64_t> choices,
                                      absl::Span<const int64_t> kept) {
  std::vector<int64_t> next(kept.size() + 1, 0);
  for (size_t e = 0; e < kept.size(); ++e) next[e + 1] = next[e] + kept[e];
  std::vector<int64_t> ends(next.begin() + 1, next.end());
  std::vector<int64_t> ordered(static_cast<size_t>(next.back()));
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto e = static_cast<size_t>(choices[i]);
    if (next[e] == ends[e]) continue;  // The expert is full.
    ordered[static_cast<size_t>(next[e]++)] = static_cast<int64_t>(i);
  }
  return ordered;
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

int64_t ExpertCapacity(double factor, int64_t tokens, int64_t choices,
                       int64_t experts) {
  return static_cast<int64_t>(
      std::ceil(factor * static_cast<double>(tokens * choices) /
                static_cast<double>(experts)));
}

ExpertRoutes RouteChoices(absl::Span<const int64_t> choices,
                          absl::Span<const int64_t> counts, int64_t experts,
                          const ExpertOwners& owners,
                          std::optional<int64_t> capacity) {
  const auto width = static_cast<size_t>(experts);
  const auto row_of = [width](const std::vector<int64_t>& table, int rank) {
    return absl::MakeConstSpan(table).subspan(static_cast<size_t>(rank) * width,
                                              width);
  };
  const ExpertOwners::Owner& self =
      owners.owners[static_cast<size_t>(owners.self)];
  CH_CHECK_EQ(owners.owners.back().first + owners.owners.back().count, experts)
      << "experts of all owners";
  const std::vector<int64_t> own = CountChoices(choices, experts);
  CH_CHECK(std::equal(own.begin(), own.end(),
                      counts.begin() + self.batch_rank * experts))
      << "the counts of rank " << self.batch_rank
      << " of the batch are not those of its choices";

  const std::vector<int64_t> kept = KeptOf(counts, width, capacity);
  ExpertRoutes routes;
  routes.kept = InOrderOfExperts(choices, row_of(kept, self.batch_rank));

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
