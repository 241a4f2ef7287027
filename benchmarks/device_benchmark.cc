// SPDX-License-Identifier: Apache-2.0

/// \file
/// Measures the kernels of a device, each alone and on bfloat16 where it has a
/// choice. Prints a JSON object per line: the kernel, its sizes, microseconds,
/// and the bytes and operations that it must do.
///
/// usage: device_benchmark --suite=elementwise|rows|vocabulary|adamw|matmul|
///                                 attention
///                         [--device=cuda|cpu] [--tiny] [--seconds=0.2]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/tensor.h"

ABSL_FLAG(std::string, device, "cuda", "cuda or cpu.");
ABSL_FLAG(std::string, suite, "",
          "elementwise, rows, vocabulary, adamw, matmul or attention.");
ABSL_FLAG(bool, tiny, false, "Sizes that take no time, to test the program.");
ABSL_FLAG(double, seconds, 0.2, "Approximate time for each kernel.");

namespace crosshatch {
namespace {

constexpr DType kHalf = kBFloat16;

/// Returns seconds of `count` launches.
template <typename Launches>
double SecondsOf(int64_t count, const Launches& launch) {
  RankContext& context = RankContext::Current();
  CH_CHECK_OK(context.Synchronize());
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) launch();
  CH_CHECK_OK(context.Synchronize());
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count();
}

/// Prints the best mean of three batches of launches.
template <typename Family, typename Args>
void Measure(const std::string& kernel, const std::string& sizes, double bytes,
             double flops,
             void (*Family::*function)(const Args&, KernelContext&),
             const Args& args) {
  const auto launch = [&] { internal::Launch(function, args); };
  SecondsOf(1, launch);  // Loads the kernel.
  const double one = SecondsOf(1, launch);
  const double wanted = absl::GetFlag(FLAGS_seconds) / 3;
  const auto count =
      static_cast<int64_t>(std::clamp(wanted / one, 1.0, 1000.0));
  double least = one;
  for (int batch = 0; batch < 3; ++batch) {
    least =
        std::min(least, SecondsOf(count, launch) / static_cast<double>(count));
  }
  std::printf(
      "{\"kernel\": \"%s\", \"sizes\": \"%s\", \"us\": %.3f, \"bytes\": %.0f, "
      "\"flops\": %.0f}\n",
      kernel.c_str(), sizes.c_str(), least * 1e6, bytes, flops);
  std::fflush(stdout);
}

template <typename Family, typename Args>
void MeasureWithWorkspace(
    const std::string& kernel, const std::string& sizes, double bytes,
    double flops, int64_t (*Family::*bytes_of)(const Args&),
    void (*Family::*function)(const Args&, KernelContext&), Args args) {
  const KernelTable& kernels = RankContext::Current().kernels();
  const Block workspace = internal::Workspace((kernels.*bytes_of)(args));
  args.workspace = workspace.data();
  Measure(kernel, sizes, bytes, flops, function, args);
}

/// Returns a contiguous tensor of standard normals. Zeros would use less power
/// than training does.
Tensor Normals(const std::vector<int64_t>& sizes, DType dtype = kHalf) {
  const Tensor x = Empty(sizes, dtype);
  RandomArgs args;
  args.out = x.raw_data();
  args.dtype = dtype;
  args.key = 7;
  args.box = {1, {x.numel()}};
  args.global_sizes[0] = x.numel();
  internal::Launch(&KernelTable::random, args);
  return x;
}

Tensor Indices(int64_t count, int64_t below) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = static_cast<int32_t>(i * 7919 % below);
  }
  return FromValues<int32_t>({count}, absl::MakeConstSpan(values));
}

double BytesOf(const Tensor& x) {
  return static_cast<double>(x.numel() * SizeOf(x.dtype()));
}

KernelInput In(const Tensor& x) {
  return {x.raw_data(), x.dtype(), {x.size(1), 1}};
}
KernelOutput Out(const Tensor& x) {
  return {x.raw_data(), x.dtype(), {x.size(1), 1}};
}
RowsInput Rows(const Tensor& x) { return {x.raw_data(), x.size(1)}; }
RowsOutput RowsOut(const Tensor& x) { return {x.raw_data(), x.size(1)}; }

void Elementwise(int64_t rows, int64_t cols) {
  const std::string sizes = absl::StrCat(rows, " x ", cols);
  const KernelShape shape = {2, {rows, cols}};
  const Tensor a = Normals({rows, cols}), b = Normals({rows, cols}),
               c = Normals({rows, cols}), d = Empty({rows, cols}, kHalf),
               e = Empty({rows, cols}, kHalf);
  const double bytes = BytesOf(a);
  Measure("copy", sizes, 2 * bytes, 0, &KernelTable::copy,
          CopyArgs{shape, In(a), Out(d)});
  Measure("fill", sizes, bytes, 0, &KernelTable::fill,
          FillArgs{shape, Out(d), 1});
  const Tensor wide = Empty({rows, cols}, kFloat32);
  Measure("cast to float32", sizes, 3 * bytes, 0, &KernelTable::copy,
          CopyArgs{shape, In(a), Out(wide)});
  BinaryArgs add;
  add.shape = shape;
  add.a = In(a);
  add.b = In(b);
  add.out = Out(d);
  Measure("add", sizes, 3 * bytes, 0, &KernelTable::binary, add);
  Measure("silu_mul", sizes, 3 * bytes, 0, &KernelTable::silu_mul,
          SiluMulArgs{shape, In(a), In(b), Out(d)});
  Measure("silu_mul_backward", sizes, 5 * bytes, 0,
          &KernelTable::silu_mul_backward,
          SiluMulBackwardArgs{shape, In(a), In(b), In(c), Out(d), Out(e)});
  DropoutArgs dropout;
  dropout.shape = shape;
  dropout.x = In(a);
  dropout.out = d.raw_data();
  dropout.p = 0.1;
  dropout.global_sizes[0] = rows;
  dropout.global_sizes[1] = cols;
  Measure("dropout", sizes, 2 * bytes, 0, &KernelTable::dropout, dropout);
}

void RowKernels(int64_t rows, int64_t cols) {
  const std::string sizes = absl::StrCat(rows, " x ", cols);
  const Tensor x = Normals({rows, cols}), y = Normals({rows, cols}),
               out = Empty({rows, cols}, kHalf), weight = Normals({cols}),
               rstd = Normals({rows}, StatisticsDType(kHalf)),
               dweight = Empty({cols}, kFloat32);
  const double bytes = BytesOf(x);
  Measure("rms_norm", sizes, 2 * bytes, 0, &KernelTable::rms_norm,
          RmsNormArgs{rows, cols, Rows(x), weight.raw_data(), RowsOut(out),
                      rstd.raw_data(), kHalf, 1e-5});
  RmsNormBackwardArgs backward;
  backward.rows = rows;
  backward.cols = cols;
  backward.grad = Rows(y);
  backward.x = Rows(x);
  backward.weight = weight.raw_data();
  backward.rstd = rstd.raw_data();
  backward.dx = RowsOut(out);
  backward.dweight = dweight.raw_data();
  backward.dtype = kHalf;
  MeasureWithWorkspace("rms_norm_backward", sizes, 3 * bytes, 0,
                       &KernelTable::rms_norm_backward_workspace_bytes,
                       &KernelTable::rms_norm_backward, backward);
  Measure("softmax", sizes, 2 * bytes, 0, &KernelTable::softmax,
          SoftmaxArgs{rows, cols, Rows(x), RowsOut(out), kHalf});
}

void Vocabulary(int64_t rows, int64_t cols, int64_t vocab) {
  const Tensor ids = Indices(rows, vocab);
  const DType statistics = StatisticsDType(kHalf);
  {
    const std::string sizes =
        absl::StrCat(rows, " of ", vocab, " rows of ", cols);
    const Tensor table = Normals({vocab, cols}), out = Normals({rows, cols}),
                 dtable = Empty({vocab, cols}, kFloat32);
    Measure("embedding", sizes, 2 * BytesOf(out), 0, &KernelTable::embedding,
            EmbeddingArgs{rows, cols, 0, vocab, ids.raw_data(), kInt32,
                          Rows(table), RowsOut(out), kHalf});
    EmbeddingBackwardArgs backward;
    backward.rows = rows;
    backward.cols = cols;
    backward.table_rows = vocab;
    backward.ids = ids.raw_data();
    backward.ids_dtype = kInt32;
    backward.grad = Rows(out);
    backward.dtable = RowsOut(dtable);
    backward.dtype = kHalf;
    MeasureWithWorkspace("embedding_backward", sizes,
                         BytesOf(out) + BytesOf(dtable), 0,
                         &KernelTable::embedding_backward_workspace_bytes,
                         &KernelTable::embedding_backward, backward);
  }
  const std::string sizes = absl::StrCat(rows, " x ", vocab);
  const Tensor logits = Normals({rows, vocab}),
               loss = Normals({rows}, statistics),
               logsumexp = Empty({rows}, statistics);
  const TargetsInput targets = {ids.raw_data(), kInt32, -100};
  Measure("cross_entropy", sizes, BytesOf(logits), 0,
          &KernelTable::cross_entropy,
          CrossEntropyArgs{rows, vocab, Rows(logits), targets, loss.raw_data(),
                           logsumexp.raw_data(), kHalf});
  Measure("cross_entropy_backward", sizes, 2 * BytesOf(logits), 0,
          &KernelTable::cross_entropy_backward,
          CrossEntropyBackwardArgs{rows, vocab, 0, Rows(logits), targets,
                                   logsumexp.raw_data(), loss.raw_data(), 1,
                                   RowsOut(logits), kHalf});
}

void AdamW(int64_t count) {
  const Tensor param = Normals({count}, kFloat32),
               grad = Normals({count}, kFloat32),
               exp_avg = Normals({count}, kFloat32),
               exp_avg_sq = Full({count}, 1, kFloat32);
  AdamWArgs args;
  args.count = count;
  args.param = param.data<float>();
  args.grad = grad.data<float>();
  args.exp_avg = exp_avg.data<float>();
  args.exp_avg_sq = exp_avg_sq.data<float>();
  args.lr = 1e-4;
  args.beta1 = 0.9;
  args.beta2 = 0.95;
  args.eps = 1e-8;
  Measure("adamw", absl::StrCat(count), 7 * BytesOf(param), 0,
          &KernelTable::adamw, args);
}

void Product(const char* name, int64_t m, int64_t n, int64_t k, bool a_t,
             bool b_t) {
  const Tensor a = Normals({m * k}), b = Normals({k * n}),
               out = Empty({m, n}, kHalf);
  MatMulArgs args;
  args.m = m;
  args.n = n;
  args.k = k;
  args.a = {a.raw_data(), a_t ? 1 : k, a_t ? m : 1};
  args.b = {b.raw_data(), b_t ? 1 : n, b_t ? k : 1};
  args.out = {out.raw_data(), n, 1};
  args.dtype = args.out_dtype = kHalf;
  MeasureWithWorkspace(name, absl::StrCat(m, " x ", n, " x ", k),
                       BytesOf(a) + BytesOf(b) + BytesOf(out),
                       2 * static_cast<double>(m) * static_cast<double>(n) *
                           static_cast<double>(k),
                       &KernelTable::matmul_workspace_bytes,
                       &KernelTable::matmul, args);
}

void Attention(int64_t batch, int64_t time, int64_t heads, int64_t dim) {
  const std::vector<int64_t> shape = {batch, time, heads, dim};
  const Tensor q = Normals(shape), k = Normals(shape), v = Normals(shape),
               grad = Normals(shape), out = Empty(shape, kHalf),
               dq = Empty(shape, kHalf), dk = Empty(shape, kHalf),
               dv = Empty(shape, kHalf),
               logsumexp = Empty({batch, heads, time}, StatisticsDType(kHalf));
  const auto in = [&](const Tensor& x) {
    return HeadsInput{x.raw_data(), time * heads * dim, heads * dim, dim};
  };
  const auto to = [&](const Tensor& x) {
    return HeadsOutput{x.raw_data(), time * heads * dim, heads * dim, dim};
  };
  AttentionBackwardArgs backward;
  AttentionArgs& args = backward.forward;
  args.batch = batch;
  args.q_len = args.kv_len = time;
  args.q_heads = args.kv_heads = heads;
  args.head_dim = dim;
  args.q = in(q);
  args.k = in(k);
  args.v = in(v);
  args.out = to(out);
  args.logsumexp = logsumexp.raw_data();
  args.dtype = kHalf;
  args.scale = 1 / std::sqrt(static_cast<double>(dim));
  backward.grad = in(grad);
  backward.dq = to(dq);
  backward.dk = to(dk);
  backward.dv = to(dv);
  const std::string sizes =
      absl::StrCat(batch, " x ", time, " x ", heads, " x ", dim);
  // Of the pairs of a query and a key that are not masked.
  const double product = 2 * static_cast<double>(batch * heads * dim) *
                         static_cast<double>(time) *
                         static_cast<double>(time + 1) / 2;
  MeasureWithWorkspace("attention", sizes, 4 * BytesOf(q), 2 * product,
                       &KernelTable::attention_workspace_bytes,
                       &KernelTable::attention, args);
  MeasureWithWorkspace("attention_backward", sizes, 8 * BytesOf(q), 5 * product,
                       &KernelTable::attention_backward_workspace_bytes,
                       &KernelTable::attention_backward, backward);
}

/// Returns false if there is no such suite.
bool RunSuite(const std::string& suite, bool tiny) {
  const int64_t rows = tiny ? 5 : 8192, cols = tiny ? 24 : 4096,
                ffn = tiny ? 40 : 14336, vocab = tiny ? 33 : 128256;
  if (suite == "elementwise") {
    Elementwise(rows, ffn);
  } else if (suite == "rows") {
    RowKernels(rows, cols);
  } else if (suite == "vocabulary") {
    Vocabulary(rows, cols, vocab);
  } else if (suite == "adamw") {
    AdamW(tiny ? 100 : int64_t{1} << 28);
  } else if (suite == "matmul") {
    // A linear layer, the gradient of its input, and that of its weight.
    Product("matmul", rows, ffn, cols, false, true);
    Product("matmul, dx", rows, cols, ffn, false, false);
    Product("matmul, dweight", ffn, cols, rows, true, false);
  } else if (suite == "attention" && tiny) {
    Attention(2, 9, 2, 16);
  } else if (suite == "attention") {
    Attention(8, 2048, 32, 64);
    Attention(4, 4096, 32, 128);
    Attention(1, 16384, 32, 128);
  } else {
    return false;
  }
  return true;
}

int Main() {
  RankContextOptions options;
  const std::string device = absl::GetFlag(FLAGS_device);
  if (device != "cuda" && device != "cpu") {
    std::fprintf(stderr, "device_benchmark: --device=%s: must be cuda or cpu\n",
                 device.c_str());
    return 2;
  }
  if (device == "cuda") {
    const absl::StatusOr<const DeviceBackend*> backend =
        BuiltCudaBackend(0, {});
    if (!backend.ok()) {
      std::fprintf(stderr, "device_benchmark: %s\n",
                   std::string(backend.status().message()).c_str());
      return 1;
    }
    options.backend = *backend;
  }
  RankContext context(options);
  const RankContextScope scope(&context);
  const NoGrad no_grad;
  const std::string suite = absl::GetFlag(FLAGS_suite);
  if (!RunSuite(suite, absl::GetFlag(FLAGS_tiny))) {
    std::fprintf(stderr,
                 "device_benchmark: --suite=%s: must be elementwise, rows, "
                 "vocabulary, adamw, matmul or attention\n",
                 suite.c_str());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures the kernels of a device.");
  absl::ParseCommandLine(argc, argv);
  return crosshatch::Main();
}
