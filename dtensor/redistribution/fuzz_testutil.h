// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_FUZZ_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_FUZZ_TESTUTIL_H_

/// \file
/// What the fuzz tests of distributed tensors share: the number of cases, the
/// seed and the meshes.

#include <cstdlib>
#include <vector>

namespace crosshatch {

/// Returns a number from the environment.
inline unsigned FuzzCases(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr
             ? otherwise
             : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

inline unsigned FuzzSeed() {
  return FuzzCases("CROSSHATCH_FUZZ_SEED", 20240607);
}

/// Returns meshes of one to three axes and up to 18 ranks.
inline const std::vector<std::vector<int>>& FuzzMeshes() {
  static const auto* const meshes = new std::vector<std::vector<int>>{
      {3}, {2, 2}, {2, 3}, {4, 2}, {2, 2, 2}, {3, 2, 2}, {2, 1, 3}, {3, 3, 2}};
  return *meshes;
}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_FUZZ_TESTUTIL_H_
