// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DOCS_PAGE_TESTUTIL_H_
#define CROSSHATCH_DOCS_PAGE_TESTUTIL_H_

/// \file
/// Reads the examples of documentation pages, for tests that check them.

#include <string>
#include <vector>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::docs {

/// A fenced block of a page.
struct Fence {
  /// "docs/layouts.md:47", for messages.
  std::string where;
  /// Its lines, at least one.
  std::vector<std::string> lines;

  /// The lines, each with its end.
  std::string Text() const;
};

/// Returns the blocks of `page` (a path in the repository) that begin with
/// ```kind. Fails a check if it cannot read the page or if a block is empty.
std::vector<Fence> FencesOf(const std::string& page, const std::string& kind);

/// Splits `text` where two or more blanks are.
std::vector<std::string> Fields(const std::string& line);

/// \name Inverses of ToString
/// They fail a check where they cannot read the text.
/// @{

/// "mesh(dp=2, tp=2)".
MeshLayout ParseMesh(const std::string& text);
/// "[4, 6]".
Shape ParseShape(const std::string& text);
/// Placements, "[S(0),R]".
Layout ParseLayout(const MeshLayout& mesh, int ndim, const std::string& text);
/// Layout::ToStringByDim, "{tp|fsdp}/4 {} P(sum){dp}".
Layout ParseByDim(const MeshLayout& mesh, const std::string& text);
/// @}

}  // namespace crosshatch::docs

#endif  // CROSSHATCH_DOCS_PAGE_TESTUTIL_H_
