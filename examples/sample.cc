// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/sample.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/dtensor/creation.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/models/kv_cache.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::examples {
namespace {

/// Removes the cache from the model on every exit.
class CacheScope {
 public:
  CacheScope(nn::Llama& model, nn::KvCache& cache) : model_(model) {
    model_.set_cache(&cache);
  }
  ~CacheScope() { model_.set_cache(nullptr); }
  CacheScope(const CacheScope&) = delete;
  CacheScope& operator=(const CacheScope&) = delete;

 private:
  nn::Llama& model_;
};

std::vector<float> NextLogits(nn::Llama& model,
                              absl::Span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  const Tensor logits = model.Forward(FromValues<int32_t>({1, length}, tokens));
  return FullTensor(Slice(logits, 1, length - 1, length)).ToVector<float>();
}

}  // namespace

int32_t Draw(absl::Span<const float> logits, const SampleOptions& options,
             double uniform) {
  CH_CHECK(!logits.empty());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float of_a = logits[static_cast<size_t>(a)];
    const float of_b = logits[static_cast<size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  };
  size_t count = order.size();
  if (options.temperature == 0) {
    count = 1;
  } else if (options.top_k > 0) {
    count = std::min(count, static_cast<size_t>(options.top_k));
  }
  std::partial_sort(order.begin(),
                    order.begin() + static_cast<std::ptrdiff_t>(count),
                    order.end(), likelier);
  if (count == 1) return order[0];
  const double largest = logits[static_cast<size_t>(order[0])];
  std::vector<double> sums;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double logit = logits[static_cast<size_t>(order[i])];
    sum += std::exp((logit - largest) / options.temperature);
    sums.push_back(sum);
  }
  const auto drawn = static_cast<size_t>(
      std::upper_bound(sums.begin(), sums.end(), uniform * sum) - sums.begin());
  return order[std::min(drawn, count - 1)];
}

absl::StatusOr<std::vector<int32_t>> Sample(World& world, nn::Llama& model,
                                            absl::Span<const int32_t> prompt,
                                            const SampleOptions& options) {
  CH_CHECK(!prompt.empty()) << "Sample needs a prompt of at least one token";
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all, AllRanks(world));
  const NoGrad no_grad;
  const int64_t length = static_cast<int64_t>(prompt.size()) + options.count;
  const nn::RopeScaling& rope = model.config().rope_scaling;
  if (rope.DependsOnLength() && length > rope.original_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt and sample of ", length,
        " tokens: the rotary positions of this model depend on the length "
        "beyond ",
        rope.original_positions,
        ", but the cached keys have those of a shorter text"));
  }
  nn::KvCache cache(length);
  const CacheScope scope(model, cache);
  std::vector<int32_t> drawn;
  while (static_cast<int64_t>(drawn.size()) < options.count) {
    const std::vector<float> logits =
        drawn.empty()
            ? NextLogits(model, prompt)
            : NextLogits(model, absl::MakeConstSpan(&drawn.back(), 1));
    CH_RETURN_IF_ERROR(world.context().status());
    if (std::any_of(logits.begin(), logits.end(),
                    [](float logit) { return std::isnan(logit); })) {
      return absl::OutOfRangeError(absl::StrCat(
          "token ", drawn.size(), " of the sample: its logits are NaN"));
    }
    const float uniform =
        Rand({1},
             {.seed = options.seed, .name = "sample", .step = drawn.size()})
            .ToVector<float>()[0];
    CH_ASSIGN_OR_RETURN(
        const std::vector<std::string> said,
        all->Exchange(absl::StrCat(Draw(logits, options, double{uniform})),
                      "sample"));
    int32_t token = 0;
    CH_CHECK(absl::SimpleAtoi(said[0], &token));
    drawn.push_back(token);
  }
  return drawn;
}

}  // namespace crosshatch::examples
