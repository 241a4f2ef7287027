// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/svg.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace crosshatch::examples {

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string FormatCoordinate(double value) {
  return absl::StrFormat("%.1f", value);
}

std::string Short(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return absl::StrFormat("%.3gG", value / 1e9);
  if (size >= 1e6) return absl::StrFormat("%.3gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%.3gK", value / 1e3);
  return absl::StrFormat("%.4g", value);
}

std::vector<double> Ticks(double low, double high, int count) {
  // Treats values that differ in their last digits only as equal.
  if (!(high - low > std::abs(low) * 1e-9)) {
    high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
  }
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    step = factor * power;
    if (step >= rough) break;
  }
  std::vector<double> ticks;
  const auto most = static_cast<size_t>(count) + 4;
  for (double i = std::floor(low / step); ticks.size() < most; ++i) {
    ticks.push_back(i * step);
    if (ticks.back() >= high - step * 1e-9) break;
  }
  return ticks;
}

}  // namespace crosshatch::examples
