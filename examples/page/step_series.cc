// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/step_series.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace crosshatch::examples {
namespace {

using Json = nlohmann::ordered_json;

double Mean(double a, int64_t of_a, double b, int64_t of_b) {
  return (a * static_cast<double>(of_a) + b * static_cast<double>(of_b)) /
         static_cast<double>(of_a + of_b);
}
std::optional<double> Mean(std::optional<double> a, int64_t of_a,
                           std::optional<double> b, int64_t of_b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return Mean(*a, of_a, *b, of_b);
}

void Merge(const SeriesPoint& later, SeriesPoint& point) {
  const int64_t n = point.count;
  const int64_t m = later.count;
  point.loss = Mean(point.loss, n, later.loss, m);
  point.grad_norm = Mean(point.grad_norm, n, later.grad_norm, m);
  point.tokens_per_s = Mean(point.tokens_per_s, n, later.tokens_per_s, m);
  point.lr = later.lr;
  if (later.eval_loss.has_value()) point.eval_loss = later.eval_loss;
  point.step = later.step;
  point.count += m;
}

Json OrNull(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

std::optional<double> NumberAt(const Json& row, size_t i) {
  if (!row[i].is_number()) return std::nullopt;
  return row[i].get<double>();
}

constexpr size_t kFields = 7;

}  // namespace

void StepSeries::Add(const StepMetrics& metrics) {
  const SeriesPoint step = {.step = metrics.step,
                            .count = 1,
                            .loss = metrics.loss,
                            .grad_norm = metrics.grad_norm,
                            .lr = metrics.lr,
                            .tokens_per_s = metrics.tokens_per_s,
                            .eval_loss = metrics.eval_loss};
  if (!points_.empty() && points_.back().count < stride_) {
    Merge(step, points_.back());
    return;
  }
  if (points_.size() == most_) Halve();
  // The last of an odd number of points is merged with the next step.
  if (!points_.empty() && points_.back().count < stride_) {
    Merge(step, points_.back());
  } else {
    points_.push_back(step);
  }
}

void StepSeries::Halve() {
  stride_ *= 2;
  std::vector<SeriesPoint> merged;
  for (const SeriesPoint& point : points_) {
    if (merged.empty() || merged.back().count + point.count > stride_) {
      merged.push_back(point);
    } else {
      Merge(point, merged.back());
    }
  }
  points_ = std::move(merged);
}

std::string StepSeries::ToJson() const {
  Json points = Json::array();
  for (const SeriesPoint& p : points_) {
    points.push_back({p.step, p.count, OrNull(p.loss), OrNull(p.grad_norm),
                      p.lr, p.tokens_per_s, OrNull(p.eval_loss)});
  }
  Json series;
  series["stride"] = stride_;
  series["fields"] = {"step", "steps",        "loss",     "grad_norm",
                      "lr",   "tokens_per_s", "eval_loss"};
  series["points"] = std::move(points);
  return series.dump();
}

StepSeries StepSeries::FromJson(const std::string& json, int64_t last_step) {
  StepSeries series;
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("points") ||
      !parsed.contains("stride") || !parsed["stride"].is_number_integer() ||
      !parsed["points"].is_array()) {
    return series;
  }
  series.stride_ = std::max<int64_t>(1, parsed["stride"].get<int64_t>());
  for (const Json& row : parsed["points"]) {
    if (!row.is_array() || row.size() != kFields ||
        !row[0].is_number_integer() || !row[1].is_number_integer() ||
        !row[4].is_number() || !row[5].is_number()) {
      return StepSeries();
    }
    const SeriesPoint point = {.step = row[0].get<int64_t>(),
                               .count = row[1].get<int64_t>(),
                               .loss = NumberAt(row, 2),
                               .grad_norm = NumberAt(row, 3),
                               .lr = row[4].get<double>(),
                               .tokens_per_s = row[5].get<double>(),
                               .eval_loss = NumberAt(row, 6)};
    const int64_t before =
        series.points_.empty() ? 0 : series.points_.back().step;
    if (point.step <= before || point.count < 1) return StepSeries();
    if (point.step > last_step) break;
    series.points_.push_back(point);
  }
  while (series.points_.size() > series.most_) series.Halve();
  return series;
}

}  // namespace crosshatch::examples
