// SPDX-License-Identifier: Apache-2.0
/// \file
/// Speed of the CPU kernels on one thread:
///   bazel run //benchmarks:kernels_benchmark -- --benchmark_filter=Attention

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "crosshatch/tensor/kernels/cpu/cpu_kernels.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {
namespace {

/// Memory for `count` elements of any dtype, filled with small positive
/// numbers.
class Buffer {
 public:
  explicit Buffer(int64_t count, DType dtype = DType::kFloat32)
      : bytes_(static_cast<size_t>(count * SizeOf(dtype) + 64)) {
    FillArgs fill;
    fill.shape = {1, {count}};
    fill.out = {data(), dtype, {1}};
    fill.value = 0.25;
    KernelContext context;
    CpuKernels().fill(fill, context);
  }
  void* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> bytes_;
};

void Report(benchmark::State& state, double flops, double bytes) {
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  if (bytes > 0) {
    state.counters["GB/s"] = benchmark::Counter(
        bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  }
}

/// Computes y (m, n) = x (m, k) w^T with w (n, k), as a linear layer does. The
/// last argument is the dtype.
void MatMul(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const auto dtype = static_cast<DType>(state.range(3));
  Buffer a(m * k, dtype), b(n * k, dtype), out(m * n, dtype);
  MatMulArgs args;
  args.m = m;
  args.n = n;
  args.k = k;
  args.a = {a.data(), k, 1};
  args.b = {b.data(), 1, k};
  args.out = {out.data(), n, 1};
  args.dtype = args.out_dtype = dtype;
  Buffer workspace(CpuKernels().matmul_workspace_bytes(args), DType::kBool);
  args.workspace = workspace.data();
  KernelContext context;
  for (auto _ : state) CpuKernels().matmul(args, context);
  state.SetLabel(Name(dtype));
  Report(state, 2.0 * static_cast<double>(m * n * k), 0);
}
BENCHMARK(MatMul)
    ->ArgNames({"m", "n", "k", "dtype"})
    ->Args({2048, 64, 64, static_cast<int>(DType::kFloat32)})
    ->Args({2048, 256, 256, static_cast<int>(DType::kFloat32)})
    ->Args({2048, 1024, 256, static_cast<int>(DType::kFloat32)})
    ->Args({1024, 1024, 1024, static_cast<int>(DType::kFloat32)})
    ->Args({1024, 1024, 1024, static_cast<int>(DType::kBFloat16)})
    ->Args({512, 512, 512, static_cast<int>(DType::kFloat64)});

/// Causal attention with batch size 4. Counts the FLOPs of the unmasked half
/// only.
struct AttentionProblem {
  explicit AttentionProblem(const benchmark::State& state)
      : time(state.range(0)),
        heads(state.range(1)),
        dim(state.range(2)),
        count(4 * time * heads * dim),
        q(count),
        k(count),
        v(count),
        out(count),
        grad(count),
        dq(count),
        dk(count),
        dv(count),
        logsumexp(4 * heads * time),
        forward_workspace(0),
        backward_workspace(0) {
    const int64_t row = heads * dim;
    const auto in = [&](Buffer& x) {
      return HeadsInput{x.data(), time * row, row, dim};
    };
    const auto to = [&](Buffer& x) {
      return HeadsOutput{x.data(), time * row, row, dim};
    };
    AttentionArgs& args = backward.forward;
    args.batch = 4;
    args.q_len = args.kv_len = time;
    args.q_heads = args.kv_heads = heads;
    args.head_dim = dim;
    args.q = in(q);
    args.k = in(k);
    args.v = in(v);
    args.out = to(out);
    args.logsumexp = logsumexp.data();
    args.scale = 1 / std::sqrt(static_cast<double>(dim));
    backward.grad = in(grad);
    backward.dq = to(dq);
    backward.dk = to(dk);
    backward.dv = to(dv);
    forward_workspace =
        Buffer(CpuKernels().attention_workspace_bytes(args), DType::kBool);
    backward_workspace =
        Buffer(CpuKernels().attention_backward_workspace_bytes(backward),
               DType::kBool);
    args.workspace = forward_workspace.data();
    backward.workspace = backward_workspace.data();
  }
  double ProductFlops() const {
    return 2.0 * 4 * static_cast<double>(heads * dim * time) *
           static_cast<double>(time + 1) / 2;
  }

  int64_t time, heads, dim, count;
  Buffer q, k, v, out, grad, dq, dk, dv, logsumexp;
  Buffer forward_workspace, backward_workspace;
  AttentionBackwardArgs backward;
};

void AttentionForward(benchmark::State& state) {
  AttentionProblem problem(state);
  KernelContext context;
  for (auto _ : state) {
    CpuKernels().attention(problem.backward.forward, context);
  }
  Report(state, 2 * problem.ProductFlops(), 0);
}
void AttentionBackward(benchmark::State& state) {
  AttentionProblem problem(state);
  KernelContext context;
  CpuKernels().attention(problem.backward.forward, context);
  for (auto _ : state) {
    CpuKernels().attention_backward(problem.backward, context);
  }
  Report(state, 5 * problem.ProductFlops(), 0);
}
void AttentionSizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "H", "D"});
  for (const std::vector<int64_t>& args : {std::vector<int64_t>{64, 4, 16},
                                           {256, 4, 16},
                                           {256, 4, 64},
                                           {1024, 2, 64},
                                           {1024, 2, 128}}) {
    b->Args(args);
  }
}
BENCHMARK(AttentionForward)->Apply(AttentionSizes);
BENCHMARK(AttentionBackward)->Apply(AttentionSizes);

/// Documents in a row of 1024 tokens, forward and backward: packed, or with one
/// call per document on the same memory.
constexpr int64_t kDocuments[] = {17, 300, 64, 211, 432};

void AttentionDocuments(benchmark::State& state) {
  AttentionProblem problem(state);
  KernelContext context;
  std::vector<AttentionBackwardArgs> calls;
  std::vector<int32_t> ranges;
  const AttentionBackwardArgs& whole = problem.backward;
  const bool packed = state.range(3) != 0;
  int64_t begin = 0;
  for (const int64_t length : kDocuments) {
    AttentionBackwardArgs& one = calls.emplace_back(whole);
    one.forward.q_len = one.forward.kv_len = length;
    const auto move = [&](auto& x) {
      using Data = decltype(x.data);
      x.data = static_cast<Data>(static_cast<float*>(const_cast<void*>(
                                     static_cast<const void*>(x.data))) +
                                 begin * x.time_stride);
    };
    move(one.forward.q);
    move(one.forward.k);
    move(one.forward.v);
    move(one.forward.out);
    move(one.grad);
    move(one.dq);
    move(one.dk);
    move(one.dv);
    for (int64_t i = 0; i < length; ++i) {
      ranges.push_back(static_cast<int32_t>(begin));
      ranges.push_back(static_cast<int32_t>(begin + length));
    }
    begin += length;
  }
  if (packed) {
    calls = {whole};
    calls[0].forward.key_ranges = ranges.data();
  }
  for (auto _ : state) {
    for (const AttentionBackwardArgs& call : calls) {
      CpuKernels().attention(call.forward, context);
      CpuKernels().attention_backward(call, context);
    }
  }
}
BENCHMARK(AttentionDocuments)
    ->ArgNames({"T", "H", "D", "packed"})
    ->Args({1024, 2, 64, 0})
    ->Args({1024, 2, 64, 1});

void Add(benchmark::State& state) {
  const int64_t count = state.range(0);
  const auto dtype = static_cast<DType>(state.range(1));
  Buffer a(count, dtype), b(count, dtype), out(count, dtype);
  BinaryArgs args;
  args.shape = {1, {count}};
  args.a = {a.data(), dtype, {1}};
  args.b = {b.data(), dtype, {1}};
  args.out = {out.data(), dtype, {1}};
  KernelContext context;
  for (auto _ : state) CpuKernels().binary(args, context);
  state.SetLabel(Name(dtype));
  Report(state, static_cast<double>(count),
         3.0 * static_cast<double>(count * SizeOf(dtype)));
}
BENCHMARK(Add)
    ->ArgNames({"count", "dtype"})
    ->Args({16, static_cast<int>(DType::kFloat32)})
    ->Args({16384, static_cast<int>(DType::kFloat32)})
    ->Args({16384, static_cast<int>(DType::kBFloat16)})
    ->Args({16384, static_cast<int>(DType::kFloat16)})
    ->Args({4 << 20, static_cast<int>(DType::kFloat32)});

/// Computes a (1024, n) += b (n), a broadcast row.
void AddRow(benchmark::State& state) {
  const int64_t n = state.range(0);
  Buffer a(1024 * n), b(n);
  BinaryArgs args;
  args.shape = {2, {1024, n}};
  args.a = {a.data(), DType::kFloat32, {n, 1}};
  args.b = {b.data(), DType::kFloat32, {0, 1}};
  args.out = {a.data(), DType::kFloat32, {n, 1}};
  KernelContext context;
  for (auto _ : state) CpuKernels().binary(args, context);
  Report(state, static_cast<double>(1024 * n),
         8 * static_cast<double>(1024 * n));
}
BENCHMARK(AddRow)->Arg(16)->Arg(64)->Arg(1024);

void SiluMul(benchmark::State& state) {
  const int64_t count = 1 << 16;
  Buffer gate(count), up(count), out(count);
  const SiluMulArgs args = {{1, {count}},
                            {gate.data(), DType::kFloat32, {1}},
                            {up.data(), DType::kFloat32, {1}},
                            {out.data(), DType::kFloat32, {1}}};
  KernelContext context;
  for (auto _ : state) CpuKernels().silu_mul(args, context);
  Report(state, static_cast<double>(count), 12.0 * count);
}
BENCHMARK(SiluMul);

void RmsNormForward(benchmark::State& state) {
  const int64_t rows = 1024, cols = state.range(0);
  Buffer x(rows * cols), weight(cols), out(rows * cols), rstd(rows);
  const RmsNormArgs args = {rows,
                            cols,
                            {x.data(), cols},
                            weight.data(),
                            {out.data(), cols},
                            rstd.data(),
                            DType::kFloat32,
                            1e-5};
  KernelContext context;
  for (auto _ : state) CpuKernels().rms_norm(args, context);
  Report(state, 4.0 * static_cast<double>(rows * cols),
         8.0 * static_cast<double>(rows * cols));
}
BENCHMARK(RmsNormForward)->Arg(64)->Arg(512);

void RmsNormBackward(benchmark::State& state) {
  const int64_t rows = 1024, cols = state.range(0);
  Buffer x(rows * cols), weight(cols), grad(rows * cols), dx(rows * cols),
      dweight(cols), rstd(rows);
  RmsNormBackwardArgs args;
  args.rows = rows;
  args.cols = cols;
  args.grad = {grad.data(), cols};
  args.x = {x.data(), cols};
  args.weight = weight.data();
  args.rstd = rstd.data();
  args.dx = {dx.data(), cols};
  args.dweight = dweight.data();
  Buffer workspace(CpuKernels().rms_norm_backward_workspace_bytes(args),
                   DType::kBool);
  args.workspace = workspace.data();
  KernelContext context;
  for (auto _ : state) CpuKernels().rms_norm_backward(args, context);
  Report(state, 10.0 * static_cast<double>(rows * cols),
         20.0 * static_cast<double>(rows * cols));
}
BENCHMARK(RmsNormBackward)->Arg(64)->Arg(512);

void CrossEntropyBoth(benchmark::State& state) {
  const int64_t rows = 1024, cols = state.range(0);
  Buffer logits(rows * cols), dlogits(rows * cols), loss(rows), logsumexp(rows),
      grad(rows);
  std::vector<int32_t> classes(static_cast<size_t>(rows), 1);
  const TargetsInput targets = {classes.data(), DType::kInt32, -100};
  const CrossEntropyArgs forward = {
      rows,           cols,        {logits.data(), cols},
      targets,        loss.data(), logsumexp.data(),
      DType::kFloat32};
  CrossEntropyBackwardArgs backward;
  backward.rows = rows;
  backward.cols = cols;
  backward.logits = {logits.data(), cols};
  backward.targets = targets;
  backward.logsumexp = logsumexp.data();
  backward.grad = grad.data();
  backward.dlogits = {dlogits.data(), cols};
  KernelContext context;
  for (auto _ : state) {
    CpuKernels().cross_entropy(forward, context);
    CpuKernels().cross_entropy_backward(backward, context);
  }
  Report(state, 0, 12.0 * static_cast<double>(rows * cols));
}
BENCHMARK(CrossEntropyBoth)->Arg(256)->Arg(4096);

void AdamW(benchmark::State& state) {
  const int64_t count = 1 << 18;
  Buffer param(count), grad(count), exp_avg(count), exp_avg_sq(count);
  AdamWArgs args;
  args.count = count;
  args.param = static_cast<float*>(param.data());
  args.grad = static_cast<const float*>(grad.data());
  args.exp_avg = static_cast<float*>(exp_avg.data());
  args.exp_avg_sq = static_cast<float*>(exp_avg_sq.data());
  args.lr = 1e-3;
  args.beta1 = 0.9;
  args.beta2 = 0.95;
  args.eps = 1e-8;
  KernelContext context;
  for (auto _ : state) CpuKernels().adamw(args, context);
  Report(state, 0, 28.0 * count);
}
BENCHMARK(AdamW);

void Transpose(benchmark::State& state) {
  const int64_t n = state.range(0);
  Buffer src(n * n), out(n * n);
  const CopyArgs args = {{2, {n, n}},
                         {src.data(), DType::kFloat32, {1, n}},
                         {out.data(), DType::kFloat32, {n, 1}}};
  KernelContext context;
  for (auto _ : state) CpuKernels().copy(args, context);
  Report(state, 0, 8.0 * static_cast<double>(n * n));
}
BENCHMARK(Transpose)->Arg(64)->Arg(1024);

void RandomNormal(benchmark::State& state) {
  const int64_t count = 1 << 16;
  Buffer out(count);
  RandomArgs args;
  args.out = out.data();
  args.box = {1, {count}};
  args.global_sizes[0] = count;
  KernelContext context;
  for (auto _ : state) CpuKernels().random(args, context);
  Report(state, 0, 4.0 * count);
}
BENCHMARK(RandomNormal);

void SumAll(benchmark::State& state) {
  const int64_t count = 1 << 18;
  Buffer in(count), out(1);
  ReduceArgs args;
  args.shape = {1, {count}};
  args.reduced = 1;
  args.in = {in.data(), DType::kFloat32, {1}};
  args.out = {out.data(), DType::kFloat32, {}};
  KernelContext context;
  for (auto _ : state) CpuKernels().reduce(args, context);
  Report(state, static_cast<double>(count), 4.0 * count);
}
BENCHMARK(SumAll);

}  // namespace
}  // namespace crosshatch
