// SPDX-License-Identifier: Apache-2.0
#include "files/file_plane.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/data_plane_testutil.h"
#include "gtest/gtest.h"

namespace consumer {
namespace {

std::vector<std::unique_ptr<crosshatch::DataPlanes>> MakePlanes(int ranks) {
  static int jobs = 0;
  const std::string directory =
      testing::TempDir() + "/files-" + std::to_string(++jobs);
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  std::vector<std::unique_ptr<crosshatch::DataPlanes>> planes;
  for (int rank = 0; rank < ranks; ++rank) {
    planes.push_back(std::make_unique<FilePlanes>(directory));
  }
  return planes;
}

// Registers both suites: agreement and failures, and data movement.
const bool registered = crosshatch::RegisterCommunicatorConformanceTests(
    crosshatch::EngineOfPlanes("Files", MakePlanes, {1, 3}));

}  // namespace
}  // namespace consumer
