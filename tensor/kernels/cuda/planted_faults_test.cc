// SPDX-License-Identifier: Apache-2.0

/// \file
/// Mistakes planted in kernels: each barrier left out, the last store left out,
/// and a store more behind the last one. What the kernels compute then differs,
/// within some orders of threads, or the mistake is one that changes nothing.

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
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
using kernel_test::Bytes;
using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Reals;

constexpr int kOrders = 20;

// A call of a kernel with its outputs.
struct Case {
  std::string name;
  std::vector<Operand*> outputs;
  std::function<void(KernelContext&)> run;
};

using Outputs = std::vector<Bytes>;

// What the outputs hold after the call, with threads in the order of their
// numbers (0) or in one that `order` draws.
Outputs OutputsOf(const Case& c, uint64_t order) {
  emulation::SetThreadOrder(
      static_cast<cudaStream_t>(
          internal::CudaContextOf(kernel_test::Context()).stream),
      order);
  for (Operand* output : c.outputs) {
    output->set_bytes(Bytes(output->bytes().size(), std::byte{0xFF}));
  }
  kernel_test::Run(c.run);
  Outputs outputs;
  for (Operand* output : c.outputs) outputs.push_back(output->bytes());
  return outputs;
}

// The order of threads, of kOrders, in which the fault shows; -1: in none.
int Shows(const Case& c, const Outputs& expected, const KernelFault& fault) {
  for (int order = 0; order < kOrders; ++order) {
    const KernelProbe probe(fault);
    if (OutputsOf(c, static_cast<uint64_t>(order)) != expected) return order;
  }
  return -1;
}

constexpr int kEnded = kOrders;

// The same in a process of its own; kEnded if that ends: where threads are no
// longer of one mind a barrier is one that only some of them come to.
int ShowsApart(const Case& c, const Outputs& expected,
               const KernelFault& fault) {
  const pid_t child = fork();
  if (child == 0) {
    // What it says when it ends is no error of the test's.
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    _exit(Shows(c, expected, fault) + 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) - 1 : kEnded;
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
    Outputs expected;
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
    EXPECT_GE(
        Shows(c, expected,
              {.kind = KernelFault::Kind::kOneStoreMore, .store = stores - 1}),
        0)
        << c.name << " with a store behind its last one";
    for (const BarrierPlace& barrier : barriers) {
      const size_t slash = barrier.file.rfind('/');
      const std::string place =
          barrier.file.substr(slash + 1) + ":" + std::to_string(barrier.line);
      if (found_[place]) continue;
      const int order = ShowsApart(
          c, expected,
          {.kind = KernelFault::Kind::kNoBarrier, .barrier = barrier});
      std::cout << c.name << " without the barrier at " << place << ": "
                << (order < 0 ? "no difference"
                    : order == kEnded
                        ? "ends the program"
                        : "found in order " + std::to_string(order))
                << "\n";
      found_[place] = order >= 0;
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
  Bytes workspace(
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
  Bytes more(static_cast<size_t>(
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

  // Tiles that a mask hides are skipped by all threads of a block together.
  Operand hidden(kBool, {1, 1, 70, 70});
  Operand lowered = Filled(kFloat32, {1, 1, 70, 70});
  Reals seen;
  for (int64_t i = 0; i < 70 * 70; ++i) seen.push_back(i % 70 < 40 ? 0 : 1);
  hidden.Set(seen);
  for (const Operand* mask : {&hidden, &lowered}) {
    AttentionArgs masked = attention;
    masked.causal = false;
    masked.mask = mask->in();
    masked.mask.strides[1] = 0;
    const std::string by =
        std::string(" with a mask of ") + Name(mask->dtype());
    ExpectFound(
        {"attention" + by, {&out, &logsumexp}, [&](KernelContext& context) {
           kernels.attention(masked, context);
         }});
    kernel_test::Run(
        [&](KernelContext& context) { kernels.attention(masked, context); });
    AttentionBackwardArgs of_masked = backward;
    of_masked.forward = masked;
    Bytes for_masked(static_cast<size_t>(
        kernels.attention_backward_workspace_bytes(of_masked)));
    of_masked.workspace = for_masked.data();
    ExpectFound({"attention_backward" + by,
                 {&dq, &dk, &dv},
                 [&](KernelContext& context) {
                   kernels.attention_backward(of_masked, context);
                 }});
  }

  int not_found = 0;
  for (const auto& [place, is_found] : found_) {
    if (is_found) continue;
    ++not_found;
    // Its block takes a second tile only of copies of 2^31 tiles.
    EXPECT_EQ(place.substr(0, place.find(':')), "copy.cu") << place;
  }
  EXPECT_EQ(not_found, 1);
  EXPECT_EQ(found_.size(), 14u);
}

// The kernels without barriers, and the other ways of those with some.
TEST_F(PlantedKernelFaultsTest, StoresOfEveryKernelAreFound) {
  const KernelTable& kernels = Kernels();
  const auto expect_found = [this](const char* name,
                                   std::vector<Operand*> outputs,
                                   std::function<void(KernelContext&)> run) {
    ExpectFound({name, std::move(outputs), std::move(run)});
  };
  const std::vector<int64_t> sizes = {5, 37};
  Operand a = Filled(kFloat32, sizes);
  Operand b = Filled(kFloat32, sizes);
  Operand c = Filled(kFloat32, sizes);
  Operand out(kFloat32, sizes);
  Operand more(kFloat32, sizes);
  Operand still_more(kFloat32, sizes);
  Operand of_rows(kFloat32, {5});
  Operand more_of_rows(kFloat32, {5});
  Operand of_cols(kFloat32, {37});
  Operand more_of_cols(kFloat32, {37});
  const KernelShape shape = a.shape();

  expect_found("unary", {&out}, [&](KernelContext& context) {
    kernels.unary(
        {.op = UnaryOp::kSilu, .shape = shape, .a = a.in(), .out = out.out()},
        context);
  });
  expect_found("binary", {&out}, [&](KernelContext& context) {
    kernels.binary({.shape = shape, .a = a.in(), .b = b.in(), .out = out.out()},
                   context);
  });
  Operand condition(kBool, sizes);
  condition.Fill(random_, 0, 1);
  expect_found("where", {&out}, [&](KernelContext& context) {
    kernels.where({shape, condition.in(), a.in(), b.in(), out.out()}, context);
  });
  expect_found("silu_mul", {&out}, [&](KernelContext& context) {
    kernels.silu_mul({shape, a.in(), b.in(), out.out()}, context);
  });
  expect_found("silu_mul_backward", {&out, &more}, [&](KernelContext& context) {
    kernels.silu_mul_backward(
        {shape, c.in(), a.in(), b.in(), out.out(), more.out()}, context);
  });
  expect_found("copy", {&out}, [&](KernelContext& context) {
    kernels.copy({shape, a.in(), out.out()}, context);
  });
  expect_found("fill", {&out}, [&](KernelContext& context) {
    kernels.fill({shape, out.out(), 3}, context);
  });
  expect_found("arange", {&out}, [&](KernelContext& context) {
    kernels.arange({out.data(), kFloat32, 5 * 37, 2, 0.5}, context);
  });
  RandomArgs random;
  random.out = out.data();
  random.box = shape;
  random.global_sizes[0] = 5;
  random.global_sizes[1] = 37;
  expect_found("random", {&out}, [&](KernelContext& context) {
    kernels.random(random, context);
  });
  DropoutArgs dropout;
  dropout.shape = shape;
  dropout.x = a.in();
  dropout.out = out.data();
  dropout.p = 0.25;
  dropout.global_sizes[0] = 5;
  dropout.global_sizes[1] = 37;
  expect_found("dropout", {&out}, [&](KernelContext& context) {
    kernels.dropout(dropout, context);
  });

  expect_found("softmax_backward", {&out}, [&](KernelContext& context) {
    kernels.softmax_backward(
        {5, 37, a.rows(), b.rows(), out.rows_out(), kFloat32}, context);
  });
  expect_found("rms_norm", {&out, &of_rows}, [&](KernelContext& context) {
    kernels.rms_norm({5, 37, a.rows(), b.data(), out.rows_out(), of_rows.data(),
                      kFloat32, 1e-5},
                     context);
  });
  Operand rstd = Filled(kFloat32, {5});
  Operand mean = Filled(kFloat32, {5});
  RmsNormBackwardArgs rms = {.rows = 5,
                             .cols = 37,
                             .grad = a.rows(),
                             .x = b.rows(),
                             .weight = c.data(),
                             .rstd = rstd.data(),
                             .dx = out.rows_out(),
                             .dweight = of_cols.data()};
  Bytes rms_parts(
      static_cast<size_t>(kernels.rms_norm_backward_workspace_bytes(rms)));
  rms.workspace = rms_parts.data();
  expect_found(
      "rms_norm_backward", {&out, &of_cols},
      [&](KernelContext& context) { kernels.rms_norm_backward(rms, context); });
  LayerNormBackwardArgs layer = {.rows = 5,
                                 .cols = 37,
                                 .grad = a.rows(),
                                 .x = b.rows(),
                                 .weight = c.data(),
                                 .mean = mean.data(),
                                 .rstd = rstd.data(),
                                 .dx = out.rows_out(),
                                 .dweight = of_cols.data(),
                                 .dbias = more_of_cols.data()};
  Bytes parts(
      static_cast<size_t>(kernels.layer_norm_backward_workspace_bytes(layer)));
  layer.workspace = parts.data();
  expect_found("layer_norm_backward", {&out, &of_cols, &more_of_cols},
               [&](KernelContext& context) {
                 kernels.layer_norm_backward(layer, context);
               });

  Operand classes(kInt64, {5});
  classes.Set({3, 36, 0, 7, 20});
  const TargetsInput targets = {classes.data(), kInt64, -100};
  expect_found(
      "cross_entropy", {&of_rows, &more_of_rows}, [&](KernelContext& context) {
        kernels.cross_entropy({5, 37, a.rows(), targets, of_rows.data(),
                               more_of_rows.data(), kFloat32},
                              context);
      });
  expect_found("cross_entropy_shard", {&of_rows, &more_of_rows},
               [&](KernelContext& context) {
                 kernels.cross_entropy_shard(
                     {5, 37, 0, a.rows(), targets, mean.data(), of_rows.data(),
                      more_of_rows.data(), kFloat32},
                     context);
               });
  expect_found("cross_entropy_backward", {&out}, [&](KernelContext& context) {
    kernels.cross_entropy_backward({5, 37, 0, a.rows(), targets, rstd.data(),
                                    mean.data(), 1, out.rows_out(), kFloat32},
                                   context);
  });

  Operand ids(kInt64, {5});
  ids.Set({2, 0, 3, 1, 4});
  expect_found("embedding", {&out}, [&](KernelContext& context) {
    kernels.embedding(
        {5, 37, 0, 5, ids.data(), kInt64, a.rows(), out.rows_out(), kFloat32},
        context);
  });
  EmbeddingBackwardArgs embedding = {.rows = 5,
                                     .cols = 37,
                                     .table_rows = 5,
                                     .ids = ids.data(),
                                     .grad = a.rows(),
                                     .dtable = out.rows_out()};
  Bytes sorted(static_cast<size_t>(
      kernels.embedding_backward_workspace_bytes(embedding)));
  embedding.workspace = sorted.data();
  expect_found("embedding_backward", {&out}, [&](KernelContext& context) {
    kernels.embedding_backward(embedding, context);
  });
  Operand places(kInt32, sizes);
  Reals each_row;
  for (int64_t i = 0; i < 5 * 37; ++i) {
    each_row.push_back(static_cast<double>(4 - i / 37));
  }
  places.Set(each_row);
  const IndexedDim at = {"rows", 0, 0, 5, 5};
  expect_found("gather", {&out}, [&](KernelContext& context) {
    kernels.gather({shape, at, places.in(), a.in(), out.out()}, context);
  });
  expect_found("scatter", {&out}, [&](KernelContext& context) {
    kernels.scatter({shape, at, places.in(), a.in(), out.out()}, context);
  });

  expect_found("sum of rows", {&of_rows}, [&](KernelContext& context) {
    kernels.reduce({.kind = ReduceKind::kSum,
                    .shape = shape,
                    .reduced = 2,
                    .in = a.in(),
                    .out = of_rows.out()},
                   context);
  });
  Operand indices(kInt64, sizes);
  SortArgs sort = {.shape = shape,
                   .dim = 1,
                   .in = a.in(),
                   .count = 37,
                   .values = out.out(),
                   .indices = indices.out()};
  Bytes keys(static_cast<size_t>(kernels.sort_workspace_bytes(sort)));
  sort.workspace = keys.data();
  expect_found("sort", {&out, &indices},
               [&](KernelContext& context) { kernels.sort(sort, context); });

  Operand x = Filled(kFloat32, {1, 5, 3, 16});
  Operand turned(kFloat32, {1, 5, 3, 16});
  Operand cos = Filled(kFloat32, {5, 8});
  Operand sin = Filled(kFloat32, {5, 8});
  expect_found("rope", {&turned}, [&](KernelContext& context) {
    kernels.rope({1, 5, 3, 16, x.heads(), turned.heads_out(),
                  static_cast<const float*>(cos.data()),
                  static_cast<const float*>(sin.data())},
                 context);
  });
  WindowsArgs windows;
  windows.images = 1;
  windows.channels = 5;
  windows.rows = {.size = 6, .windows = 3, .kernel = 2, .stride = 2};
  windows.cols = windows.rows;
  Operand image = Filled(kFloat32, {5, 6, 6});
  Operand patches(kFloat32, {5, 6, 6});
  windows.in = image.data();
  windows.out = patches.data();
  expect_found("unfold", {&patches}, [&](KernelContext& context) {
    kernels.unfold(windows, context);
  });
  expect_found("fold", {&patches},
               [&](KernelContext& context) { kernels.fold(windows, context); });

  AdamWArgs adamw;
  adamw.count = 5 * 37;
  adamw.param = static_cast<float*>(out.data());
  adamw.grad = static_cast<const float*>(a.data());
  adamw.exp_avg = static_cast<float*>(more.data());
  adamw.exp_avg_sq = static_cast<float*>(still_more.data());
  expect_found("adamw", {&out, &more, &still_more},
               [&](KernelContext& context) {
                 // It updates what is there.
                 for (Operand* operand : {&out, &more, &still_more}) {
                   operand->Set(Reals(5 * 37, 0.5));
                 }
                 kernels.adamw(adamw, context);
               });
  const void* sources[] = {a.data(), b.data(), c.data()};
  expect_found("accumulate_ranks", {&out}, [&](KernelContext& context) {
    kernels.accumulate_ranks(
        {ReduceOp::kSum, sources, 3, out.data(), 5 * 37, kFloat32, kFloat32},
        context);
  });
}

}  // namespace
}  // namespace crosshatch
