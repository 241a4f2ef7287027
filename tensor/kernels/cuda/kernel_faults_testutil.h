// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_KERNEL_FAULTS_TESTUTIL_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_KERNEL_FAULTS_TESTUTIL_H_

/// \file
/// Plants mistakes in kernels under emulation, one at a time, and expects each
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
  /// Undefined before each call, as what it leases on a device.
  std::vector<kernel_test::Bytes*> workspaces = {};
  /// Mistakes that change nothing, such as "KERNEL without its last load", and
  /// why that is so.
  std::map<std::string, std::string> harmless = {};
};

class KernelFaults {
 public:
  using Outputs = std::vector<kernel_test::Bytes>;

  /// Leaves out, one at a time: each barrier that the call comes to and that no
  /// call before has shown, and of each of its kernels the last load and the
  /// last store; and has the last store write behind its place. Expects other
  /// outputs, or the end of the program, within some orders of threads, but of
  /// what is harmless none. Of barriers it is enough that some call shows them
  /// (ExpectAllPlanted).
  void Plant(const KernelCall& call);

  /// Expects that mistakes were planted in all kernels that the sources in
  /// `directory` launch and in all their barriers, and that all of these
  /// showed but those in the files of `harmless`.
  void ExpectAllPlanted(const std::string& directory,
                        const std::multiset<std::string>& harmless) const;

 private:
  // By barrier, "FILE:LINE", whether some call showed that it was left out.
  std::map<std::string, bool> barriers_;
  std::set<std::string> kernels_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_KERNEL_FAULTS_TESTUTIL_H_
