// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ENTRY_POINTS_TESTUTIL_H_
#define CROSSHATCH_TENSOR_OPS_ENTRY_POINTS_TESTUTIL_H_

#include <vector>

namespace crosshatch {

/// A call of an op, or of a method of Tensor, on an undefined tensor.
struct EntryPoint {
  const char* call;
  void (*run)();
};

/// Returns all of them, as list_entry_points.py finds them in the headers.
std::vector<EntryPoint> EntryPoints();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ENTRY_POINTS_TESTUTIL_H_
