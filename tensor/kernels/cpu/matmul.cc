// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/gemm.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"
#include "crosshatch/tensor/kernels/matmul_layout.h"

namespace crosshatch::internal {
namespace {

/// Elements of a staged panel, if 64 rows or columns allow it.
constexpr int64_t kPanelElements = int64_t{1} << 20;

constexpr MatMulHelpers kHelpers = {CpuCopy, CpuFill, CpuUnary, CpuBinary};

/// The operands that are copied to contiguous memory in the compute type, panel
/// by panel.
struct Staging {
  /// \param args as NormalizedMatMul returns them.
  explicit Staging(const MatMulArgs& args)
      : a(SizeOf(args.dtype) == 2 ||
          !HasLeadingStrideEitherWay(args.m, args.k, args.a)),
        b(SizeOf(args.dtype) == 2 ||
          !HasLeadingStrideEitherWay(args.k, args.n, args.b)),
        out(SizeOf(args.out_dtype) == 2 ||
            !HasLeadingStride(args.m, args.n, args.out.row_stride,
                              args.out.col_stride)) {
    const int64_t by_k =
        std::max<int64_t>(64, kPanelElements / std::max<int64_t>(args.k, 1));
    panel_m = a ? std::min(args.m, by_k) : args.m;
    panel_n = b ? std::min(args.n, by_k) : args.n;
    if (out && panel_m * panel_n > kPanelElements) {
      panel_m = std::min<int64_t>(panel_m, 1024);
      panel_n =
          std::min(panel_n, std::max<int64_t>(64, kPanelElements / panel_m));
    }
    a_elements = a ? Round(panel_m * args.k) : 0;
    b_elements = b ? Round(args.k * panel_n) : 0;
    out_elements = out ? Round(panel_m * panel_n) : 0;
  }
  // Keeps the panels aligned to 64 bytes.
  static int64_t Round(int64_t elements) { return (elements + 15) / 16 * 16; }

  bool any() const { return a || b || out; }

  bool a;
  bool b;
  bool out;
  // Sizes of the panels that are staged at one time.
  int64_t panel_m;
  int64_t panel_n;
  int64_t a_elements;
  int64_t b_elements;
  int64_t out_elements;
};

/// The problem in its computed form: out's rows contiguous if transposing the
/// product achieves that, and a batch that shares b as one taller matrix.
struct Problem {
  explicit Problem(const MatMulArgs& original)
      : args(NormalizedMatMul(original)),
        staging(args),
        batch(StridedLoop::Make(args.batch,
                                {args.a.batch_strides, args.b.batch_strides,
                                 args.out.batch_strides},
                                -1)) {
    batch.sizes[batch.ndim++] = 1;
  }

  const MatMulArgs args;
  const Staging staging;
  /// Operand 0: a, 1: b, 2: out. Each product is a row of one element.
  StridedLoop batch;
};

/// Splits a product into pieces for threads, by its size alone, so that its
/// bits do not depend on the number of threads. Each piece is at least 32 in
/// both dims. Two pieces take at least 20 microseconds each, so that small
/// models use a second core. More take at least 150 each, because each piece
/// packs its operands again: pieces of a tenth of that took a quarter longer.
struct Grid {
  int64_t rows = 1;
  int64_t cols = 1;
};
Grid MakeGrid(int64_t m, int64_t n, int64_t k, int64_t batch) {
  constexpr int64_t kLeast = 32;
  constexpr double kLeastWorkOfTwo = 1 << 20;
  constexpr double kLeastWork = 1 << 23;
  Grid grid;
  double work =
      static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto may_split = [&] {
    const int64_t pieces = batch * grid.rows * grid.cols;
    const double least = pieces == 1 ? kLeastWorkOfTwo : kLeastWork;
    return pieces * 2 <= 32 && work >= 2 * least;
  };
  while (may_split()) {
    const int64_t rows = m / grid.rows;
    const int64_t cols = n / grid.cols;
    if (rows >= cols && rows >= 2 * kLeast) {
      grid.rows *= 2;
    } else if (cols >= 2 * kLeast) {
      grid.cols *= 2;
    } else if (rows >= 2 * kLeast) {
      grid.rows *= 2;
    } else {
      break;
    }
    work /= 2;
  }
  return grid;
}

/// A matrix in the compute type, possibly transposed, with two strides that
/// HasLeadingStride accepts.
template <typename T>
struct Strided {
  T* data;
  int64_t row_stride;
  int64_t col_stride;

  Strided Block(int64_t row, int64_t col) const {
    return {data + row * row_stride + col * col_stride, row_stride, col_stride};
  }
  GemmMatrix<T> AsGemm(int64_t rows, int64_t cols) const {
    if (HasLeadingStride(rows, cols, row_stride, col_stride)) {
      return {data, std::max<int64_t>({cols, 1, rows == 1 ? 1 : row_stride}),
              false};
    }
    return {data, std::max<int64_t>({rows, 1, cols == 1 ? 1 : col_stride}),
            true};
  }
};

template <typename T>
struct Product {
  int64_t m;
  int64_t n;
  int64_t k;
  Strided<const T> a;
  Strided<const T> b;
  Strided<T> out;
};

template <typename T>
void MultiplyPiece(const Product<T>& product, const Grid& grid, int64_t part,
                   T alpha, T beta) {
  const PartRange rows = RangeOfPart(product.m, grid.rows, part / grid.cols);
  const PartRange cols = RangeOfPart(product.n, grid.cols, part % grid.cols);
  const int64_t m = rows.end - rows.begin;
  const int64_t n = cols.end - cols.begin;
  if (m == 0 || n == 0) return;
  Gemm(m, n, product.k, alpha,
       product.a.Block(rows.begin, 0).AsGemm(m, product.k),
       product.b.Block(0, cols.begin).AsGemm(product.k, n), beta,
       product.out.Block(rows.begin, cols.begin).AsGemm(m, n));
}

template <typename T>
Product<T> WholeProduct(const Problem& problem, const RowCursor& cursor) {
  const MatMulArgs& args = problem.args;
  return {args.m,
          args.n,
          args.k,
          {static_cast<const T*>(args.a.data) + cursor.offset(0),
           args.a.row_stride, args.a.col_stride},
          {static_cast<const T*>(args.b.data) + cursor.offset(1),
           args.b.row_stride, args.b.col_stride},
          {static_cast<T*>(args.out.data) + cursor.offset(2),
           args.out.row_stride, args.out.col_stride}};
}

/// Computes all pieces of all products without staging.
template <typename T>
void MultiplyInPlace(const Problem& problem, KernelContext& context) {
  const MatMulArgs& args = problem.args;
  const StridedLoop& batch = problem.batch;
  const int64_t products = batch.rows();
  const Grid grid = MakeGrid(args.m, args.n, args.k, products);
  const int64_t pieces = grid.rows * grid.cols;
  const int64_t cost =
      std::max<int64_t>(args.m * args.n * args.k / pieces / 32, 64);
  ForRanges(context, products * pieces, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowCursor cursor(batch, i / pieces);
      MultiplyPiece(WholeProduct<T>(problem, cursor), grid, i % pieces,
                    static_cast<T>(args.alpha), static_cast<T>(args.beta));
    }
  });
}

/// Copies a (rows, cols) block to contiguous memory of type T, keeping its
/// memory order.
template <typename T>
Strided<const T> Stage(const void* from, DType dtype, int64_t offset,
                       int64_t row_stride, int64_t col_stride, int64_t rows,
                       int64_t cols, T* to, KernelContext& context) {
  if (row_stride == 1 && col_stride != 1) {
    const Strided<const T> transposed = Stage(
        from, dtype, offset, col_stride, row_stride, cols, rows, to, context);
    return {transposed.data, 1, transposed.row_stride};
  }
  CopyArgs copy;
  copy.shape = {2, {rows, cols}};
  copy.src = {ElementAt(from, dtype, offset), dtype, {row_stride, col_stride}};
  copy.out = {to, DTypeOf<T>, {cols, 1}};
  CpuCopy(copy, context);
  return {to, cols, 1};
}

/// Computes panel by panel through the workspace.
template <typename T>
void MultiplyStaged(const Problem& problem, KernelContext& context) {
  const MatMulArgs& args = problem.args;
  const Staging& staging = problem.staging;
  const StridedLoop& batch = problem.batch;
  CH_CHECK(args.workspace != nullptr) << "matmul kernel: no workspace";
  T* const a_panel = static_cast<T*>(args.workspace);
  T* const b_panel = a_panel + staging.a_elements;
  T* const out_panel = b_panel + staging.b_elements;
  RowCursor cursor(batch, 0);
  for (int64_t i = 0; i < batch.rows(); ++i, cursor.Next()) {
    const Product<T> whole = WholeProduct<T>(problem, cursor);
    for (int64_t m0 = 0; m0 < args.m; m0 += staging.panel_m) {
      const int64_t m = std::min(staging.panel_m, args.m - m0);
      Strided<const T> a = whole.a.Block(m0, 0);
      if (staging.a) {
        a = Stage(args.a.data, args.dtype,
                  cursor.offset(0) + m0 * args.a.row_stride, args.a.row_stride,
                  args.a.col_stride, m, args.k, a_panel, context);
      }
      for (int64_t n0 = 0; n0 < args.n; n0 += staging.panel_n) {
        const int64_t n = std::min(staging.panel_n, args.n - n0);
        Strided<const T> b = whole.b.Block(0, n0);
        if (staging.b) {
          b = Stage(args.b.data, args.dtype,
                    cursor.offset(1) + n0 * args.b.col_stride,
                    args.b.row_stride, args.b.col_stride, args.k, n, b_panel,
                    context);
        }
        const Product<T> product = {
            m,
            n,
            args.k,
            a,
            b,
            staging.out ? Strided<T>{out_panel, n, 1} : whole.out.Block(m0, n0)};
        const Grid grid = MakeGrid(m, n, args.k, 1);
        ForParts(context, grid.rows * grid.cols, [&](int64_t part) {
          MultiplyPiece(product, grid, part, static_cast<T>(args.alpha),
                        staging.out ? T(0) : static_cast<T>(args.beta));
        });
        if (staging.out) {
          AddPanel(args, out_panel,
                   cursor.offset(2) + m0 * args.out.row_stride +
                       n0 * args.out.col_stride,
                   m, n, kHelpers, context);
        }
      }
    }
  }
}

template <typename T>
void MatMulAs(const Problem& problem, KernelContext& context) {
  if (problem.staging.any()) {
    MultiplyStaged<T>(problem, context);
  } else {
    MultiplyInPlace<T>(problem, context);
  }
}

}  // namespace

int64_t CpuMatMulWorkspaceBytes(const MatMulArgs& args) {
  const Staging staging(NormalizedMatMul(args));
  const int64_t element = args.dtype == DType::kFloat64 ? 8 : 4;
  return (staging.a_elements + staging.b_elements + staging.out_elements) *
         element;
}

void CpuMatMul(const MatMulArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype) &&
           (args.out_dtype == args.dtype ||
            (SizeOf(args.dtype) == 2 && args.out_dtype == DType::kFloat32)))
      << "matmul kernel of " << Name(args.dtype) << " to "
      << Name(args.out_dtype);
  CH_CHECK_LT(args.batch.ndim, kMaxKernelDims - 1) << "matmul kernel";
  int64_t products = 1;
  for (int d = 0; d < args.batch.ndim; ++d) products *= args.batch.sizes[d];
  if (products * args.m * args.n == 0) return;
  if (args.k == 0) return ScaleOut(args, kHelpers, context);
  const Problem problem(args);
  if (args.dtype == DType::kFloat64) {
    MatMulAs<double>(problem, context);
  } else {
    MatMulAs<float>(problem, context);
  }
  AddBias(args, kHelpers, context);
}

}  // namespace crosshatch::internal
