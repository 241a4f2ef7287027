// SPDX-License-Identifier: Apache-2.0

/// \file
/// Mistakes planted in kernels: each barrier left out, and the last store. What
/// the kernels compute then differs, within some orders of threads, or the
/// mistake is one that changes nothing.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/emulation/kernel_probe.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::BarrierPlace;
using emulation::KernelFault;
using emulation::KernelProbe;
using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;

constexpr int kOrders = 20;

// A call of a kernel with its outputs.
struct Case {
  std::string name;
  std::vector<Operand*> outputs;
  std::function<void(KernelContext&)> run;
};

using Bytes = std::vector<std::vector<std::byte>>;

// What the outputs hold after the call, with threads in the order of their
// numbers (0) or in one that `order` draws.
Bytes OutputsOf(const Case& c, uint64_t order) {
  emulation::SetThreadOrder(
      static_cast<cudaStream_t>(
          internal::CudaContextOf(kernel_test::Context()).stream),
      order);
  for (Operand* output : c.outputs) {
    output->set_bytes(
        std::vector<std::byte>(output->bytes().size(), std::byte{0xFF}));
  }
  kernel_test::Run(c.run);
  Bytes bytes;
  for (Operand* output : c.outputs) bytes.push_back(output->bytes());
  return bytes;
}

// The order of threads, of kOrders, in which the fault shows; -1: in none.
int Shows(const Case& c, const Bytes& expected, const KernelFault& fault) {
  for (int order = 0; order < kOrders; ++order) {
    const KernelProbe probe(fault);
    if (OutputsOf(c, static_cast<uint64_t>(order)) != expected) return order;
  }
  return -1;
}

class PlantedKernelFaultsTest : public ::testing::Test {
 protected:
  Operand Filled(DType dtype, std::vector<int64_t> sizes,
                 LayoutKind layout = LayoutKind::kContiguous) {
    Operand operand(dtype, std::move(sizes), layout);
    operand.Fill(random_, -1, 1);
    return operand;
  }

  void ExpectFound(const Case& c) {
    Bytes expected;
    std::set<BarrierPlace> barriers;
    int64_t stores = 0;
    {
      const KernelProbe probe;
      expected = OutputsOf(c, 0);
      barriers = probe.barriers();
      stores = probe.stores();
    }
    ASSERT_GT(stores, 0) << c.name;
    EXPECT_EQ(OutputsOf(c, 1), expected) << c.name << " without a mistake";
    EXPECT_GE(Shows(c, expected,
                    {.kind = KernelFault::Kind::kNoStore, .store = stores - 1}),
              0)
        << c.name << " without its last store";
    for (const BarrierPlace& barrier : barriers) {
      const int order =
          Shows(c, expected,
                {.kind = KernelFault::Kind::kNoBarrier, .barrier = barrier});
      const size_t slash = barrier.file.rfind('/');
      const std::string place =
          barrier.file.substr(slash + 1) + ":" + std::to_string(barrier.line);
      std::cout << c.name << " without the barrier at " << place << ": "
                << (order < 0 ? "no difference"
                              : "found in order " + std::to_string(order))
                << "\n";
      found_[place] |= order >= 0;
    }
  }

  // By barrier, whether some case found that it was left out.
  std::map<std::string, bool> found_;
  Random random_{7};
};

TEST_F(PlantedKernelFaultsTest, AreFound) {
  const KernelTable& kernels = Kernels();

  Operand wide = Filled(kFloat32, {5, 700});
  Operand of_rows(kFloat32, {5, 700});
  ExpectFound({"softmax", {&of_rows}, [&](KernelContext& context) {
                 kernels.softmax(
                     {5, 700, wide.rows(), of_rows.rows_out(), kFloat32},
                     context);
               }});

  Operand transposed = Filled(kFloat32, {70, 40}, LayoutKind::kTransposed);
  Operand copy(kFloat32, {70, 40});
  ExpectFound({"transpose", {&copy}, [&](KernelContext& context) {
                 kernels.copy({transposed.shape(), transposed.in(), copy.out()},
                              context);
               }});

  Operand summed(kFloat32, {5, 700});
  ExpectFound({"cumsum", {&summed}, [&](KernelContext& context) {
                 kernels.cumsum({.shape = wide.shape(),
                                 .dim = 1,
                                 .in = wide.in(),
                                 .out = summed.out()},
                                context);
               }});

  Operand tall = Filled(kFloat32, {3000, 70});
  Operand of_columns(kFloat32, {1, 70});
  ExpectFound({"sum of columns", {&of_columns}, [&](KernelContext& context) {
                 kernels.reduce({.kind = ReduceKind::kSum,
                                 .shape = tall.shape(),
                                 .reduced = 1,
                                 .in = tall.in(),
                                 .out = of_columns.out()},
                                context);
               }});

  Operand q = Filled(kFloat32, {1, 70, 2, 48});
  Operand k = Filled(kFloat32, {1, 70, 1, 48});
  Operand v = Filled(kFloat32, {1, 70, 1, 48});
  Operand out(kFloat32, {1, 70, 2, 48});
  Operand logsumexp(kFloat32, {1, 2, 70});
  AttentionArgs attention = {.batch = 1,
                             .q_len = 70,
                             .kv_len = 70,
                             .q_heads = 2,
                             .kv_heads = 1,
                             .head_dim = 48,
                             .q = q.heads(),
                             .k = k.heads(),
                             .v = v.heads(),
                             .out = out.heads_out(),
                             .logsumexp = logsumexp.data(),
                             .scale = 0.2};
  std::vector<std::byte> workspace(
      static_cast<size_t>(kernels.attention_workspace_bytes(attention)) + 64);
  attention.workspace = workspace.data();
  ExpectFound({"attention", {&out, &logsumexp}, [&](KernelContext& context) {
                 kernels.attention(attention, context);
               }});

  Operand grad = Filled(kFloat32, {1, 70, 2, 48});
  Operand dq(kFloat32, {1, 70, 2, 48});
  Operand dk(kFloat32, {1, 70, 1, 48});
  Operand dv(kFloat32, {1, 70, 1, 48});
  kernel_test::Run(
      [&](KernelContext& context) { kernels.attention(attention, context); });
  AttentionBackwardArgs backward = {.forward = attention,
                                    .grad = grad.heads(),
                                    .dq = dq.heads_out(),
                                    .dk = dk.heads_out(),
                                    .dv = dv.heads_out()};
  std::vector<std::byte> more(
      static_cast<size_t>(
          kernels.attention_backward_workspace_bytes(backward)) +
      64);
  backward.workspace = more.data();
  ExpectFound(
      {"attention_backward", {&dq, &dk, &dv}, [&](KernelContext& context) {
         kernels.attention_backward(backward, context);
       }});

  Operand normed(kFloat32, {5, 700});
  Operand mean(kFloat32, {5});
  Operand rstd(kFloat32, {5});
  ExpectFound(
      {"layer_norm", {&normed, &mean, &rstd}, [&](KernelContext& context) {
         kernels.layer_norm({.rows = 5,
                             .cols = 700,
                             .x = wide.rows(),
                             .out = normed.rows_out(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .dtype = kFloat32,
                             .eps = 1e-5},
                            context);
       }});

  int not_found = 0;
  for (const auto& [place, is_found] : found_) {
    if (is_found) continue;
    ++not_found;
    // Its block takes a second tile only of copies of 2^31 tiles.
    EXPECT_EQ(place.substr(0, place.find(':')), "copy.cu") << place;
  }
  EXPECT_EQ(not_found, 1);
  EXPECT_GE(found_.size(), 9u);
}

}  // namespace
}  // namespace crosshatch
