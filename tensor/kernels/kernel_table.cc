// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch {

std::vector<std::string> MissingKernels(const KernelTable& table) {
  std::vector<std::string> missing;
#define CH_CHECK_MEMBER(d, member, Name, Args) \
  if (table.member == nullptr) missing.emplace_back(#member);
#define CH_CHECK_MEMBERS(d, member, Name, Args)       \
  if (table.member##_workspace_bytes == nullptr) {    \
    missing.emplace_back(#member "_workspace_bytes"); \
  }                                                   \
  CH_CHECK_MEMBER(d, member, Name, Args)
  CH_ALL_KERNELS(CH_CHECK_MEMBER, CH_CHECK_MEMBERS, )
  return missing;
}

}  // namespace crosshatch
