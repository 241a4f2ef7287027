// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/kernel_table.h"

#include <iterator>

namespace crosshatch {

std::vector<std::string> MissingKernels(const KernelTable& table) {
  const struct {
    const char* name;
    bool there;
  } kernels[] = {
      {"copy", table.copy != nullptr},
      {"fill", table.fill != nullptr},
      {"arange", table.arange != nullptr},
      {"from_host", table.from_host != nullptr},
      {"to_host", table.to_host != nullptr},
      {"unary", table.unary != nullptr},
      {"binary", table.binary != nullptr},
      {"where", table.where != nullptr},
      {"silu_mul", table.silu_mul != nullptr},
      {"silu_mul_backward", table.silu_mul_backward != nullptr},
      {"reduce", table.reduce != nullptr},
      {"matmul_workspace_bytes", table.matmul_workspace_bytes != nullptr},
      {"matmul", table.matmul != nullptr},
      {"attention_workspace_bytes", table.attention_workspace_bytes != nullptr},
      {"attention", table.attention != nullptr},
      {"attention_backward_workspace_bytes",
       table.attention_backward_workspace_bytes != nullptr},
      {"attention_backward", table.attention_backward != nullptr},
      {"rope", table.rope != nullptr},
      {"softmax", table.softmax != nullptr},
      {"softmax_backward", table.softmax_backward != nullptr},
      {"rms_norm", table.rms_norm != nullptr},
      {"rms_norm_backward_workspace_bytes",
       table.rms_norm_backward_workspace_bytes != nullptr},
      {"rms_norm_backward", table.rms_norm_backward != nullptr},
      {"layer_norm", table.layer_norm != nullptr},
      {"layer_norm_backward_workspace_bytes",
       table.layer_norm_backward_workspace_bytes != nullptr},
      {"layer_norm_backward", table.layer_norm_backward != nullptr},
      {"cross_entropy", table.cross_entropy != nullptr},
      {"cross_entropy_shard", table.cross_entropy_shard != nullptr},
      {"cross_entropy_backward", table.cross_entropy_backward != nullptr},
      {"embedding", table.embedding != nullptr},
      {"embedding_backward_workspace_bytes",
       table.embedding_backward_workspace_bytes != nullptr},
      {"embedding_backward", table.embedding_backward != nullptr},
      {"adamw", table.adamw != nullptr},
      {"random", table.random != nullptr},
      {"accumulate_ranks", table.accumulate_ranks != nullptr},
      {"gather", table.gather != nullptr},
      {"scatter", table.scatter != nullptr},
      {"dropout", table.dropout != nullptr},
      {"check_index_range", table.check_index_range != nullptr},
      {"cumsum", table.cumsum != nullptr},
      {"sort_workspace_bytes", table.sort_workspace_bytes != nullptr},
      {"sort", table.sort != nullptr},
      {"unfold", table.unfold != nullptr},
      {"fold", table.fold != nullptr},
  };
  static_assert(sizeof(KernelTable) == std::size(kernels) * sizeof(table.copy),
                "a kernel is not in this list");
  std::vector<std::string> missing;
  for (const auto& kernel : kernels) {
    if (!kernel.there) missing.emplace_back(kernel.name);
  }
  return missing;
}

}  // namespace crosshatch
