// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/docs/page_testutil.h"

#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"

namespace crosshatch::docs {
namespace {

// Returns the text between a leading `open` and a trailing `close`.
std::string Inside(const std::string& text, const std::string& open,
                   const std::string& close) {
  absl::string_view inner = text;
  CH_CHECK(absl::ConsumePrefix(&inner, open) &&
           absl::ConsumeSuffix(&inner, close))
      << "\"" << text << "\" is not " << open << "..." << close;
  return std::string(inner);
}

int64_t Number(const std::string& text) {
  int64_t number = 0;
  CH_CHECK(absl::SimpleAtoi(text, &number)) << "\"" << text << "\"";
  return number;
}

int AxisNamed(const MeshLayout& mesh, const std::string& name) {
  const absl::StatusOr<int> axis = mesh.AxisIndex(name);
  CH_CHECK_OK(axis.status());
  return *axis;
}

// "{tp|fsdp}/4", "{fsdp}@0,5".
DimSharding ParseDim(const MeshLayout& mesh, const std::string& text) {
  DimSharding sharding;
  const std::vector<std::string> and_cuts = absl::StrSplit(text, '@');
  if (and_cuts.size() > 1) {
    for (const auto& cut : absl::StrSplit(and_cuts[1], ',')) {
      sharding.cuts.push_back(Number(std::string(cut)));
    }
  }
  const std::vector<std::string> parts = absl::StrSplit(and_cuts[0], '/');
  if (parts.size() > 1) sharding.unit = Number(parts[1]);
  const std::vector<std::string> coarse_and_fine =
      absl::StrSplit(Inside(parts[0], "{", "}"), '|');
  for (size_t i = 0; i < coarse_and_fine.size(); ++i) {
    const std::vector<std::string> names =
        absl::StrSplit(coarse_and_fine[i], ',', absl::SkipEmpty());
    for (const std::string& name : names) {
      sharding.axes.push_back(AxisNamed(mesh, name));
      if (i > 0) ++sharding.fine_axes;
    }
  }
  return sharding;
}

}  // namespace

std::string Fence::Text() const {
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
  return text;
}

std::vector<Fence> FencesOf(const std::string& page, const std::string& kind) {
  std::ifstream file(page);
  CH_CHECK(file.good()) << "cannot read " << page;
  std::vector<Fence> fences;
  bool inside = false;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!inside && line == absl::StrCat("```", kind)) {
      inside = true;
      fences.push_back({absl::StrCat(page, ":", number), {}});
    } else if (inside && line == "```") {
      inside = false;
      CH_CHECK(!fences.back().lines.empty()) << fences.back().where;
    } else if (inside) {
      fences.back().lines.push_back(line);
    }
  }
  return fences;
}

std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> fields;
  for (absl::string_view part :
       absl::StrSplit(line, "  ", absl::SkipWhitespace())) {
    fields.emplace_back(absl::StripAsciiWhitespace(part));
  }
  return fields;
}

MeshLayout ParseMesh(const std::string& text) {
  std::vector<MeshAxis> axes;
  const std::vector<std::string> parts =
      absl::StrSplit(Inside(text, "mesh(", ")"), ", ");
  for (const std::string& part : parts) {
    const std::vector<std::string> halves = absl::StrSplit(part, '=');
    CH_CHECK_EQ(halves.size(), 2u) << text;
    axes.push_back({halves[0], static_cast<int>(Number(halves[1]))});
  }
  absl::StatusOr<MeshLayout> mesh = MeshLayout::Create(std::move(axes));
  CH_CHECK_OK(mesh.status());
  return *std::move(mesh);
}

Shape ParseShape(const std::string& text) {
  Shape shape;
  const std::vector<std::string> parts =
      absl::StrSplit(Inside(text, "[", "]"), ", ", absl::SkipEmpty());
  for (const std::string& part : parts) shape.push_back(Number(part));
  return shape;
}

Layout ParseLayout(const MeshLayout& mesh, int ndim, const std::string& text) {
  const auto placements = ParsePlacements(text);
  CH_CHECK_OK(placements.status());
  absl::StatusOr<Layout> layout =
      Layout::FromPlacements(mesh, ndim, *placements);
  CH_CHECK_OK(layout.status());
  return *std::move(layout);
}

Layout ParseByDim(const MeshLayout& mesh, const std::string& text) {
  std::vector<DimSharding> dims;
  Layout::Partials partials(static_cast<size_t>(mesh.ndim()));
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  for (const std::string& part : parts) {
    if (!absl::StartsWith(part, "P(")) {
      dims.push_back(ParseDim(mesh, part));
      continue;
    }
    const std::vector<std::string> op_and_axis =
        absl::StrSplit(Inside(part, "P(", "}"), "){");
    CH_CHECK_EQ(op_and_axis.size(), 2u) << part;
    const std::optional<ReduceOp> op = ParseReduceOp(op_and_axis[0]);
    CH_CHECK(op.has_value()) << part;
    partials[static_cast<size_t>(AxisNamed(mesh, op_and_axis[1]))] = op;
  }
  absl::StatusOr<Layout> layout =
      Layout::Create(mesh, std::move(dims), std::move(partials));
  CH_CHECK_OK(layout.status());
  return *std::move(layout);
}

}  // namespace crosshatch::docs
