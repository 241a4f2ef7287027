// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trains the models of tests/conformance/llama on two meshes, few enough for
/// emulated devices. llama_mesh_test uses all meshes.

#include "crosshatch/tests/llama_case_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(LlamaDevicesTest, TrainsOnTwoAxes) {
  ExpectTrainsAsTheReferenceDoes("gqa", "fsdp:2,tp:2");
}

TEST(LlamaDevicesTest, TrainsReplicatedWithTiedEmbeddings) {
  ExpectTrainsAsTheReferenceDoes("tied", "replicate:2,fsdp:2");
}

}  // namespace
}  // namespace crosshatch
