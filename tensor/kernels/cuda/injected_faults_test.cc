// SPDX-License-Identifier: Apache-2.0

/// \file
/// Faults injected into each kernel: a barrier, load or store is skipped, or a
/// store is repeated past the last one. A fault must change the outputs in some
/// order of threads, unless it is listed as harmless.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/cuda/complaint.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/kernels/cuda/kernel_faults_testutil.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::Bytes;
using kernel_test::DeviceVector;
using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Reals;

class InjectedKernelFaultsTest : public ::testing::Test {
 protected:
  Operand Filled(DType dtype, std::vector<int64_t> sizes,
                 LayoutKind layout = LayoutKind::kContiguous) {
    Operand operand(dtype, std::move(sizes), layout);
    operand.Fill(random_, -1, 1);
    return operand;
  }

  void InjectInThoseWithBarriers();
  void InjectInAttention(DType dtype, int64_t dim);
  void InjectInAllOthers();

  KernelFaults faults_;
  Random random_{7};
};

void InjectedKernelFaultsTest::InjectInThoseWithBarriers() {
  const KernelTable& kernels = Kernels();

  Operand wide = Filled(kFloat32, {5, 700});
  Operand of_rows(kFloat32, {5, 700});
  faults_.Inject({"softmax", {&of_rows}, [&](KernelContext& context) {
                    kernels.softmax(
                        {5, 700, wide.rows(), of_rows.rows_out(), kFloat32},
                        context);
                  }});

  Operand transposed = Filled(kFloat32, {70, 40}, LayoutKind::kTransposed);
  Operand copy(kFloat32, {70, 40});
  faults_.Inject({"transpose", {&copy}, [&](KernelContext& context) {
                    kernels.copy(
                        {transposed.shape(), transposed.in(), copy.out()},
                        context);
                  }});

  Operand summed(kFloat32, {5, 700});
  faults_.Inject({"cumsum", {&summed}, [&](KernelContext& context) {
                    kernels.cumsum({.shape = wide.shape(),
                                    .dim = 1,
                                    .in = wide.in(),
                                    .out = summed.out()},
                                   context);
                  }});

  Operand tall = Filled(kFloat32, {3000, 70});
  Operand of_columns(kFloat32, {1, 70});
  faults_.Inject({"sum of columns", {&of_columns}, [&](KernelContext& context) {
                    kernels.reduce({.kind = ReduceKind::kSum,
                                    .shape = tall.shape(),
                                    .reduced = 1,
                                    .in = tall.in(),
                                    .out = of_columns.out()},
                                   context);
                  }});

  InjectInAttention(kFloat32, 48);
  // Tiles of 64 and of 256 columns differ in what shared memory holds.
  InjectInAttention(kBFloat16, 48);
  InjectInAttention(kBFloat16, 256);

  Operand normed(kFloat32, {5, 700});
  Operand mean(kFloat32, {5});
  Operand rstd(kFloat32, {5});
  faults_.Inject(
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
}

// The kernels of 16-bit floats are separate.
void InjectedKernelFaultsTest::InjectInAttention(DType dtype, int64_t dim) {
  const KernelTable& kernels = Kernels();
  const std::string of_dtype =
      std::string(" of ") + Name(dtype) + " " + std::to_string(dim);
  Operand q = Filled(dtype, {1, 70, 2, dim});
  Operand k = Filled(dtype, {1, 70, 1, dim});
  Operand v = Filled(dtype, {1, 70, 1, dim});
  Operand out(dtype, {1, 70, 2, dim});
  Operand logsumexp(kFloat32, {1, 2, 70});
  AttentionArgs attention = {.batch = 1,
                             .q_len = 70,
                             .kv_len = 70,
                             .q_heads = 2,
                             .kv_heads = 1,
                             .head_dim = dim,
                             .q = q.heads(),
                             .k = k.heads(),
                             .v = v.heads(),
                             .out = out.heads_out(),
                             .logsumexp = logsumexp.data(),
                             .dtype = dtype,
                             .scale = 0.2};
  ASSERT_EQ(kernels.attention_workspace_bytes(attention), 0);
  faults_.Inject(
      {"attention" + of_dtype, {&out, &logsumexp}, [&](KernelContext& context) {
         kernels.attention(attention, context);
       }});

  Operand grad = Filled(dtype, {1, 70, 2, dim});
  Operand dq(dtype, {1, 70, 2, dim});
  Operand dk(dtype, {1, 70, 1, dim});
  Operand dv(dtype, {1, 70, 1, dim});
  kernel_test::Run(
      [&](KernelContext& context) { kernels.attention(attention, context); });
  AttentionBackwardArgs backward = {.forward = attention,
                                    .grad = grad.heads(),
                                    .dq = dq.heads_out(),
                                    .dk = dk.heads_out(),
                                    .dv = dv.heads_out()};
  Bytes more(static_cast<size_t>(
      kernels.attention_backward_workspace_bytes(backward)));
  backward.workspace = more.data();
  faults_.Inject({"attention_backward" + of_dtype,
                  {&dq, &dk, &dv},
                  [&](KernelContext& context) {
                    kernels.attention_backward(backward, context);
                  },
                  {&more}});

  // The last keys are in a block that no query sees.
  if (dtype == kBFloat16) {
    DeviceVector<int32_t> ranges;
    for (int i = 0; i < 70; ++i) ranges.insert(ranges.end(), {0, 30});
    AttentionBackwardArgs of_few = backward;
    of_few.forward.key_ranges = ranges.data();
    faults_.Inject(
        {"attention_backward of few keys" + of_dtype,
         {&dq, &dk, &dv},
         [&](KernelContext& context) {
           kernels.attention_backward(of_few, context);
         },
         {&more},
         {{"attention_mma_delta without its last load",
           "queries without keys would get zeros, later overwritten"},
          {"attention_mma_gradients without its last load",
           "it is a range of no keys instead of other keys"},
          {"attention_mma_gradients with a store behind its last one",
           "it is one of many zeros"}}});
  }

  // All threads of a block skip tiles that a mask hides.
  Operand hidden(kBool, {1, 1, 70, 70});
  Operand lowered = Filled(kFloat32, {1, 1, 70, 70});
  Reals values = lowered.Read();
  // In the last row the first one is the largest.
  std::fill(values.end() - 70, values.end(), -1);
  values[values.size() - 70] = 1;
  lowered.Set(values);
  Reals seen;
  for (int64_t i = 0; i < 70 * 70; ++i) seen.push_back(i % 70 < 40 ? 0 : 1);
  hidden.Set(seen);
  for (const Operand* mask : {&hidden, &lowered}) {
    // Wider heads have the same code for it.
    if (mask == &lowered && dim > 128) continue;
    AttentionArgs masked = attention;
    masked.causal = false;
    masked.mask = mask->in();
    masked.mask.strides[1] = 0;
    const std::string by = of_dtype + " with a mask of " + Name(mask->dtype());
    faults_.Inject(
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
    KernelCall call = {"attention_backward" + by,
                       {&dq, &dk, &dv},
                       [&](KernelContext& context) {
                         kernels.attention_backward(of_masked, context);
                       },
                       {&for_masked}};
    if (mask == &lowered) {
      call.harmless[dtype == kBFloat16
                        ? "attention_mma_delta without its last load"
                        : "attention_delta without its last load"] =
          "it looks for the largest of a row, which is another";
    }
    faults_.Inject(call);
  }
}

// Kernels without barriers, and other paths of those with some.
void InjectedKernelFaultsTest::InjectInAllOthers() {
  const KernelTable& kernels = Kernels();
  const auto inject = [this](const char* name, std::vector<Operand*> outputs,
                             std::function<void(KernelContext&)> run,
                             std::vector<Bytes*> workspaces = {},
                             std::map<std::string, std::string> harmless = {}) {
    faults_.Inject({name, std::move(outputs), std::move(run),
                    std::move(workspaces), std::move(harmless)});
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

  inject("unary", {&out}, [&](KernelContext& context) {
    kernels.unary(
        {.op = UnaryOp::kSilu, .shape = shape, .a = a.in(), .out = out.out()},
        context);
  });
  inject("binary", {&out}, [&](KernelContext& context) {
    kernels.binary({.shape = shape, .a = a.in(), .b = b.in(), .out = out.out()},
                   context);
  });
  Operand condition(kBool, sizes);
  condition.Fill(random_, 0, 1);
  inject("where", {&out}, [&](KernelContext& context) {
    kernels.where({shape, condition.in(), a.in(), b.in(), out.out()}, context);
  });
  inject("silu_mul", {&out}, [&](KernelContext& context) {
    kernels.silu_mul({shape, a.in(), b.in(), out.out()}, context);
  });
  inject("silu_mul_backward", {&out, &more}, [&](KernelContext& context) {
    kernels.silu_mul_backward(
        {shape, c.in(), a.in(), b.in(), out.out(), more.out()}, context);
  });
  inject("copy", {&out}, [&](KernelContext& context) {
    kernels.copy({shape, a.in(), out.out()}, context);
  });
  inject("fill", {&out}, [&](KernelContext& context) {
    kernels.fill({shape, out.out(), 3}, context);
  });
  inject("arange", {&out}, [&](KernelContext& context) {
    kernels.arange({out.data(), kFloat32, 5 * 37, 2, 0.5}, context);
  });
  RandomArgs random;
  random.out = out.data();
  random.box = shape;
  random.global_sizes[0] = 5;
  random.global_sizes[1] = 37;
  inject("random", {&out},
         [&](KernelContext& context) { kernels.random(random, context); });
  DropoutArgs dropout;
  dropout.shape = shape;
  dropout.x = a.in();
  dropout.out = out.data();
  dropout.p = 0.25;
  dropout.global_sizes[0] = 5;
  dropout.global_sizes[1] = 37;
  inject("dropout", {&out},
         [&](KernelContext& context) { kernels.dropout(dropout, context); });

  inject("softmax_backward", {&out}, [&](KernelContext& context) {
    kernels.softmax_backward(
        {5, 37, a.rows(), b.rows(), out.rows_out(), kFloat32}, context);
  });
  inject("rms_norm", {&out, &of_rows}, [&](KernelContext& context) {
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
  inject(
      "rms_norm_backward", {&out, &of_cols},
      [&](KernelContext& context) { kernels.rms_norm_backward(rms, context); },
      {&rms_parts});
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
  inject("layer_norm_backward", {&out, &of_cols, &more_of_cols},
         [&](KernelContext& context) {
           kernels.layer_norm_backward(layer, context);
         },
         {&parts});

  Operand classes(kInt64, {5});
  classes.Set({3, 36, 0, 7, 20});
  const TargetsInput targets = {classes.data(), kInt64, -100};
  inject("cross_entropy", {&of_rows, &more_of_rows},
         [&](KernelContext& context) {
           kernels.cross_entropy({5, 37, a.rows(), targets, of_rows.data(),
                                  more_of_rows.data(), kFloat32},
                                 context);
         });
  inject("cross_entropy_shard", {&of_rows, &more_of_rows},
         [&](KernelContext& context) {
           kernels.cross_entropy_shard(
               {5, 37, 0, a.rows(), targets, mean.data(), of_rows.data(),
                more_of_rows.data(), kFloat32},
               context);
         });
  inject("cross_entropy_backward", {&out}, [&](KernelContext& context) {
    kernels.cross_entropy_backward({5, 37, 0, a.rows(), targets, rstd.data(),
                                    mean.data(), 1, out.rows_out(), kFloat32},
                                   context);
  });

  Operand ids(kInt64, {5});
  ids.Set({2, 0, 3, 1, 1});  // No id for the last row.
  inject("embedding", {&out}, [&](KernelContext& context) {
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
  inject("embedding_backward", {&out},
         [&](KernelContext& context) {
           kernels.embedding_backward(embedding, context);
         },
         {&sorted});
  // Rows of an id in two pieces.
  Operand many_ids(kInt64, {40});
  Operand many(kFloat32, {40, 37});
  many.Fill(random_, -1, 1);
  many_ids.Set(Reals(40, 2));
  EmbeddingBackwardArgs of_many = embedding;
  of_many.rows = 40;
  of_many.ids = many_ids.data();
  of_many.grad = many.rows();
  Bytes sorted_many(
      static_cast<size_t>(kernels.embedding_backward_workspace_bytes(of_many)));
  of_many.workspace = sorted_many.data();
  inject("embedding_backward of one id", {&out},
         [&](KernelContext& context) {
           kernels.embedding_backward(of_many, context);
         },
         {&sorted_many});
  Operand places(kInt32, sizes);
  Reals each_row;
  for (int64_t i = 0; i < 5 * 37; ++i) {
    each_row.push_back(static_cast<double>(4 - i / 37));
  }
  places.Set(each_row);
  const IndexedDim at = {"rows", 0, 0, 5, 5};
  inject("gather", {&out}, [&](KernelContext& context) {
    kernels.gather({shape, at, places.in(), a.in(), out.out()}, context);
  });
  inject("scatter", {&out}, [&](KernelContext& context) {
    kernels.scatter({shape, at, places.in(), a.in(), out.out()}, context);
  });

  inject("sum of rows", {&of_rows}, [&](KernelContext& context) {
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
  inject("sort", {&out, &indices},
         [&](KernelContext& context) { kernels.sort(sort, context); }, {&keys});
  sort.count = 20;
  sort.sorted = false;
  inject("the largest", {&out, &indices},
         [&](KernelContext& context) { kernels.sort(sort, context); }, {&keys});
  inject("cumsum of short lanes", {&out}, [&](KernelContext& context) {
    kernels.cumsum({.shape = shape, .dim = 1, .in = a.in(), .out = out.out()},
                   context);
  });
  Operand doubles(kFloat64, sizes);
  inject("copy, added to another dtype", {&doubles},
         [&](KernelContext& context) {
           doubles.Set(Reals(5 * 37, 0.5));
           kernels.copy({shape, a.in(), doubles.out(), WriteMode::kAccumulate},
                        context);
         });
  // The last one is out of range.
  Operand with_one_too_large(kInt64, {5});
  with_one_too_large.Set({2, 0, 3, 1, 5});
  Operand position(kInt64, {1});
  inject("check_index_range", {&position}, [&](KernelContext& context) {
    kernels.check_index_range({.op = "op",
                               .index = "index",
                               .named = "rows",
                               .count = 5,
                               .indices = with_one_too_large.data(),
                               .bound = 5},
                              context);
    internal::Complaint& found = *internal::CudaContextOf(context).complaint;
    position.Set(
        {found.taken != 0 ? static_cast<double>(found.values[1]) : -1});
    found = internal::Complaint();
  });

  Operand x = Filled(kFloat32, {1, 5, 3, 16});
  Operand turned(kFloat32, {1, 5, 3, 16});
  Operand cos = Filled(kFloat32, {5, 8});
  Operand sin = Filled(kFloat32, {5, 8});
  inject("rope", {&turned}, [&](KernelContext& context) {
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
  inject("unfold", {&patches},
         [&](KernelContext& context) { kernels.unfold(windows, context); });
  inject("fold", {&patches},
         [&](KernelContext& context) { kernels.fold(windows, context); });

  Operand float8(DType::kFloat8E4M3, sizes);
  inject("float8_convert", {&float8}, [&](KernelContext& context) {
    kernels.float8_convert(
        {a.shape(), a.in(), {b.data(), kFloat32, {0, 1}}, float8.out()},
        context);
  });
  Operand amax(kFloat32, sizes);
  amax.Fill(random_, 0.5, 2);
  inject("float8_scale", {&out, &more}, [&](KernelContext& context) {
    kernels.float8_scale({5 * 37, static_cast<const float*>(amax.data()),
                          static_cast<float*>(out.data()),
                          static_cast<float*>(more.data()), 448, false},
                         context);
  });

  AdamWArgs adamw;
  adamw.count = 5 * 37;
  adamw.param = static_cast<float*>(out.data());
  adamw.grad = static_cast<const float*>(a.data());
  adamw.exp_avg = static_cast<float*>(more.data());
  adamw.exp_avg_sq = static_cast<float*>(still_more.data());
  adamw.lr = 0.125;
  adamw.beta1 = 0.5;
  adamw.beta2 = 0.75;
  adamw.eps = 1e-3;
  inject("adamw", {&out, &more, &still_more}, [&](KernelContext& context) {
    // The kernel updates the operands in place.
    for (Operand* operand : {&out, &more, &still_more}) {
      operand->Set(Reals(5 * 37, 0.5));
    }
    kernels.adamw(adamw, context);
  });
  const void* sources[] = {a.data(), b.data(), c.data()};
  inject("accumulate_ranks", {&out}, [&](KernelContext& context) {
    kernels.accumulate_ranks(
        {ReduceOp::kSum, sources, 3, out.data(), 5 * 37, kFloat32, kFloat32},
        context);
  });
}

TEST_F(InjectedKernelFaultsTest, ShowInEveryKernelOrChangeNothing) {
  InjectInThoseWithBarriers();
  InjectInAllOthers();
  // A transpose takes a second tile per block only from 2^31 tiles on.
  faults_.ExpectAllInjected("tensor/kernels/cuda", {"copy.cu"});
}

}  // namespace
}  // namespace crosshatch
