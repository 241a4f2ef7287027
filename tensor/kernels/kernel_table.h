// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_
#define CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_

/// \file
/// KernelTable: the kernels of one device, functions of pointers, sizes,
/// strides and dtypes. operands.h has the rules that hold for all kernels, the
/// header of a family defines what each of its kernels computes.
///
/// The header of a family also lists its kernels, once for all devices:
/// K(d, member, Name, Args) for a kernel, W(d, member, Name, Args) for a kernel
/// that takes a workspace. From the lists follow the table, the declarations of
/// a device's functions and the names of missing kernels. CONTRIBUTING.md has
/// the steps to add one.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/attention_kernels.h"
#include "crosshatch/tensor/kernels/float8_kernels.h"
#include "crosshatch/tensor/kernels/index_kernels.h"
#include "crosshatch/tensor/kernels/matmul_kernels.h"
#include "crosshatch/tensor/kernels/movement_kernels.h"
#include "crosshatch/tensor/kernels/pointwise_kernels.h"
#include "crosshatch/tensor/kernels/reduce_kernels.h"
#include "crosshatch/tensor/kernels/row_kernels.h"
#include "crosshatch/tensor/kernels/scan_and_sort_kernels.h"
#include "crosshatch/tensor/kernels/training_kernels.h"
#include "crosshatch/tensor/kernels/window_kernels.h"

/// Every kernel. `d` is passed on to K and W.
#define CH_ALL_KERNELS(K, W, d)     \
  CH_MOVEMENT_KERNELS(K, W, d)      \
  CH_POINTWISE_KERNELS(K, W, d)     \
  CH_REDUCE_KERNELS(K, W, d)        \
  CH_MATMUL_KERNELS(K, W, d)        \
  CH_ATTENTION_KERNELS(K, W, d)     \
  CH_ROW_KERNELS(K, W, d)           \
  CH_TRAINING_KERNELS(K, W, d)      \
  CH_INDEX_KERNELS(K, W, d)         \
  CH_SCAN_AND_SORT_KERNELS(K, W, d) \
  CH_WINDOW_KERNELS(K, W, d)        \
  CH_FLOAT8_KERNELS(K, W, d)

#define CH_KERNEL_MEMBER(d, member, Name, Args) \
  void (*member)(const Args&, KernelContext&) = nullptr;
#define CH_KERNEL_MEMBERS(d, member, Name, Args)              \
  int64_t (*member##_workspace_bytes)(const Args&) = nullptr; \
  CH_KERNEL_MEMBER(d, member, Name, Args)

#define CH_KERNEL_FUNCTION(d, member, Name, Args) \
  void d##Name(const Args& args, KernelContext& context);
#define CH_KERNEL_FUNCTIONS(d, member, Name, Args)   \
  int64_t d##Name##WorkspaceBytes(const Args& args); \
  CH_KERNEL_FUNCTION(d, member, Name, Args)

#define CH_KERNEL_ENTRY(d, member, Name, Args) .member = internal::d##Name,
#define CH_KERNEL_ENTRIES(d, member, Name, Args)                 \
  .member##_workspace_bytes = internal::d##Name##WorkspaceBytes, \
  CH_KERNEL_ENTRY(d, member, Name, Args)

/// Declares the functions of a device in crosshatch::internal, such as CpuCopy
/// for `d` = Cpu. Each is defined in the file of its family: cpu/copy.cc,
/// cuda/copy.cu.
#define CH_DECLARE_KERNELS(d) \
  CH_ALL_KERNELS(CH_KERNEL_FUNCTION, CH_KERNEL_FUNCTIONS, d)

/// The initializer of a KernelTable of the functions that
/// CH_DECLARE_KERNELS(d) declares.
#define CH_KERNEL_TABLE(d) \
  { CH_ALL_KERNELS(CH_KERNEL_ENTRY, CH_KERNEL_ENTRIES, d) }

namespace crosshatch {

/// Pointers to all kernels of a device. A kernel with a workspace has a second
/// member, NAME_workspace_bytes, which returns the bytes it needs.
struct KernelTable {
  CH_ALL_KERNELS(CH_KERNEL_MEMBER, CH_KERNEL_MEMBERS, )

  /// Set if the kernels record their operands instead of computing
  /// (verify/recording_kernels.h): a dry run launches them too. Called for a
  /// program's own kernel, whose operands are unknown.
  void (*record_own)(KernelContext&) = nullptr;
};

/// Returns the names of the kernels that are null in `table`.
std::vector<std::string> MissingKernels(const KernelTable& table);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_
