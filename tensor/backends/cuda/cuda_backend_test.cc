// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"

#include <cstdint>
#include <string>

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Linked with the toolkit's libraries; runs with or without devices.
TEST(CudaBackendTest, NamesADeviceThatIsNotThere) {
  const auto backend = CudaBackend(1000);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(backend.status().message()),
              ::testing::HasSubstr("no CUDA device"));
}

TEST(CudaBackendTest, EachDeviceHasOne) {
  for (int i = 0; CudaBackend(i).ok(); ++i) {
    EXPECT_EQ((*CudaBackend(i))->device(), Device::Cuda(i));
    EXPECT_EQ(*CudaBackend(i), *CudaBackend(i));
    EXPECT_FALSE((*CudaBackend(i))->host_addressable());
  }
}

TEST(CudaBackendTest, KernelsSayWhatTheyNeedWithoutADevice) {
  const KernelTable& kernels = CudaBackendForDryRuns().kernels();
  const int64_t rows = 1000;
  const int64_t cols = 96;

  EmbeddingBackwardArgs embedding;
  embedding.rows = rows;
  embedding.cols = cols;
  embedding.table_rows = 50;
  // Four arrays of 8 bytes per element, and copies of two for a sort.
  EXPECT_GE(kernels.embedding_backward_workspace_bytes(embedding), 48 * rows);

  for (int64_t lanes : {1, 7}) {
    SortArgs sort;
    sort.shape = {2, {lanes, rows}};
    sort.dim = 1;
    sort.count = 5;
    EXPECT_GE(kernels.sort_workspace_bytes(sort), 48 * lanes * rows);
  }

  MatMulArgs product;
  product.m = product.n = product.k = cols;
  product.a = product.b = {.row_stride = cols, .col_stride = 1};
  product.out = {.row_stride = cols, .col_stride = 1};
  EXPECT_GE(kernels.matmul_workspace_bytes(product), 0);

  RmsNormBackwardArgs rms_norm;
  rms_norm.rows = rows;
  rms_norm.cols = cols;
  EXPECT_GT(kernels.rms_norm_backward_workspace_bytes(rms_norm), 0);
  LayerNormBackwardArgs layer_norm;
  layer_norm.rows = rows;
  layer_norm.cols = cols;
  EXPECT_GT(kernels.layer_norm_backward_workspace_bytes(layer_norm), 0);

  AttentionArgs attention;
  EXPECT_GE(kernels.attention_workspace_bytes(attention), 0);
  AttentionBackwardArgs attention_backward;
  EXPECT_GE(kernels.attention_backward_workspace_bytes(attention_backward), 0);
}

}  // namespace
}  // namespace crosshatch
