// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "crosshatch/base/thread_pool.h"
#include "crosshatch/tensor/kernels/cpu/cpu_kernels.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {
namespace {

// Runs on the calling thread, then on pools of several widths.
class Cpu final : public kernel_test::Device {
 public:
  const KernelTable& kernels() const override { return CpuKernels(); }
  int ways() const override { return 3; }
  KernelContext& ContextOf(int way) const override {
    static ThreadPool* const pools[] = {new ThreadPool(2), new ThreadPool(3)};
    static std::array<KernelContext, 3> contexts = {
        KernelContext{}, KernelContext{.pool = pools[0]},
        KernelContext{.pool = pools[1]}};
    return contexts[static_cast<size_t>(way)];
  }
  void Check(int /*way*/) const override {}
};

[[maybe_unused]] const bool kIsSet = [] {
  static const Cpu cpu;
  kernel_test::SetDevice(&cpu);
  return true;
}();

}  // namespace
}  // namespace crosshatch
