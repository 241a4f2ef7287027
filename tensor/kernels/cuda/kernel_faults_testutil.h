// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_KERNEL_FAULTS_TESTUTIL_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_KERNEL_FAULTS_TESTUTIL_H_

/// \file
/// Injects mistakes in kernels under emulation, one at a time, and expects each
/// to show.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "crosshatch/emulation/kernel_probe.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"

namespace crosshatch {

/// A call of the kernel table, which may run several kernels.
struct KernelCall {
  std::string name;
  std::vector<kernel_test::Operand*> outputs;
  std::function<void(KernelContext&)> run;
  /// Uninitialized before each call, like leased memory.
  std::vector<kernel_test::Bytes*> workspaces = {};
  /// Faults without effect, such as "KERNEL without its last load", and the
  /// reason.
  std::map<std::string, std::string> harmless = {};
};

class KernelFaults {
 public:
  using Outputs = std::vector<kernel_test::Bytes>;

  /// Injects faults, one at a time: skips each barrier that no earlier call has
  /// tested, skips the last load and the last store of each kernel, and repeats
  /// the last store at the next address. Expects that each changes the outputs
  /// or ends the program in some order of threads, unless it is harmless. A
  /// barrier may have no effect in some calls (ExpectAllInjected).
  void Inject(const KernelCall& call);

  /// Expects that faults were injected into all kernels that the sources in
  /// `directory` launch, and into all of their barriers. All must have had an
  /// effect, except in the files of `harmless`.
  void ExpectAllInjected(const std::string& directory,
                         const std::multiset<std::string>& harmless) const;

 private:
  // By barrier, "FILE:LINE": whether skipping it had an effect in some call.
  std::map<std::string, bool> barriers_;
  std::set<std::string> kernels_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_KERNEL_FAULTS_TESTUTIL_H_
