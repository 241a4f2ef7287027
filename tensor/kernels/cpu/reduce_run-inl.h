// SPDX-License-Identifier: Apache-2.0

/// \file
/// Reductions of runs of contiguous numbers by a tree that does not depend on
/// the instruction set: kReduceLanes interleaved partial results over a run of
/// at most kReduceRun numbers, halved until one is left; results of runs are
/// combined in pairs.
///
/// A term is added at most kReduceRun / kReduceLanes + log2(kReduceLanes) = 37
/// times within its run and once for each level of pairs above.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_REDUCE_RUN_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_REDUCE_RUN_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_REDUCE_RUN_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_REDUCE_RUN_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kReduceRun = 1024;
constexpr int64_t kReduceLanes = 32;

// An operation: the neutral value, the term of an element, and the combination
// of two partial results, for numbers and for vectors.
struct SumOp {
  template <typename C>
  static constexpr C Identity() {
    return C(0);
  }
  template <typename C>
  static C Combine(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(static_cast<uint64_t>(a) +
                            static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  template <typename C>
  static C Term(C x) {
    return x;
  }
  template <class V>
  static HWY_INLINE V CombineV(V a, V b) {
    return hn::Add(a, b);
  }
  template <class V>
  static HWY_INLINE V TermV(V x) {
    return x;
  }
};

struct SumOfSquaresOp : SumOp {
  template <typename C>
  static C Term(C x) {
    return ProductOfTerms(x, x);
  }
  template <class V>
  static HWY_INLINE V TermV(V x) {
    return hn::Mul(x, x);
  }
  template <typename C>
  static C ProductOfTerms(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(static_cast<uint64_t>(a) *
                            static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

struct ProductOp : SumOp {
  template <typename C>
  static constexpr C Identity() {
    return C(1);
  }
  template <typename C>
  static C Combine(C a, C b) {
    return SumOfSquaresOp::ProductOfTerms(a, b);
  }
  template <class V>
  static HWY_INLINE V CombineV(V a, V b) {
    return hn::Mul(a, b);
  }
};

/// NaN if either is.
struct MaxOp : SumOp {
  template <typename C>
  static constexpr C Identity() {
    using Limits = std::numeric_limits<C>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  template <typename C>
  static C Combine(C a, C b) {
    return a != a || a > b ? a : b;
  }
  template <class V>
  static HWY_INLINE V CombineV(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
  }
};
struct MinOp : SumOp {
  template <typename C>
  static constexpr C Identity() {
    using Limits = std::numeric_limits<C>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  template <typename C>
  static C Combine(C a, C b) {
    return a != a || a < b ? a : b;
  }
  template <class V>
  static HWY_INLINE V CombineV(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Lt(a, b)), a, b);
  }
};

/// Reduces `count` <= kReduceRun numbers.
template <class Op, typename C>
C ReduceRun(const C* from, int64_t count) {
  HWY_ALIGN C lanes[kReduceLanes];
  int64_t i = 0;
  if constexpr (std::is_integral_v<C>) {
    std::fill(lanes, lanes + kReduceLanes, Op::template Identity<C>());
    for (; i + kReduceLanes <= count; i += kReduceLanes) {
      for (int64_t l = 0; l < kReduceLanes; ++l) {
        lanes[l] = Op::Combine(lanes[l], Op::Term(from[i + l]));
      }
    }
  } else {
    // Four chains of vectors at a time; targets with short vectors process the
    // run several times.
    const hn::CappedTag<C, kReduceLanes / 4> d;
    using V = hn::Vec<decltype(d)>;
    const auto n = static_cast<int64_t>(hn::Lanes(d));
    const V identity = hn::Set(d, Op::template Identity<C>());
    const int64_t whole = count / kReduceLanes * kReduceLanes;
    for (int64_t l = 0; l < kReduceLanes; l += 4 * n) {
      V a0 = identity, a1 = identity, a2 = identity, a3 = identity;
      for (i = 0; i < whole; i += kReduceLanes) {
        const C* at = from + i + l;
        a0 = Op::CombineV(a0, Op::TermV(hn::LoadU(d, at)));
        a1 = Op::CombineV(a1, Op::TermV(hn::LoadU(d, at + n)));
        a2 = Op::CombineV(a2, Op::TermV(hn::LoadU(d, at + 2 * n)));
        a3 = Op::CombineV(a3, Op::TermV(hn::LoadU(d, at + 3 * n)));
      }
      hn::StoreU(a0, d, lanes + l);
      hn::StoreU(a1, d, lanes + l + n);
      hn::StoreU(a2, d, lanes + l + 2 * n);
      hn::StoreU(a3, d, lanes + l + 3 * n);
    }
    i = whole;
  }
  for (int64_t l = 0; i < count; ++i, ++l) {
    lanes[l] = Op::Combine(lanes[l], Op::Term(from[i]));
  }
  for (int64_t half = kReduceLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) {
      lanes[l] = Op::Combine(lanes[l], lanes[l + half]);
    }
  }
  return lanes[0];
}

template <class Op, typename C>
void SetRow(const C* HWY_RESTRICT from, C* HWY_RESTRICT to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = Op::Term(from[i]);
}
template <class Op, typename C>
void AddRow(const C* HWY_RESTRICT from, C* HWY_RESTRICT to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = Op::Combine(to[i], Op::Term(from[i]));
  }
}
template <class Op, typename C>
void MergeRow(const C* HWY_RESTRICT from, C* HWY_RESTRICT to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = Op::Combine(from[i], to[i]);
}

/// An operation as function pointers for whole runs, so that its callers are
/// compiled once for all operations.
template <typename C>
struct Reduction {
  C identity;
  C (*combine)(C a, C b);
  C (*run)(const C* from, int64_t count);  ///< ReduceRun
  // For `count` adjacent partial results: set to terms, add one more term each,
  // combine with those of earlier terms.
  void (*set_row)(const C* from, C* to, int64_t count);
  void (*add_row)(const C* from, C* to, int64_t count);
  void (*merge_row)(const C* from, C* to, int64_t count);
};
template <class Op, typename C>
inline constexpr Reduction<C> kReduction = {Op::template Identity<C>(),
                                            Op::template Combine<C>,
                                            ReduceRun<Op, C>,
                                            SetRow<Op, C>,
                                            AddRow<Op, C>,
                                            MergeRow<Op, C>};

/// Combines values in pairs as they come: a binary counter whose digit k holds
/// the result of 2^k of them.
template <typename C>
class PairwiseStack {
 public:
  explicit PairwiseStack(const Reduction<C>& op) : op_(op) {}

  void Push(C value) {
    int level = 0;
    for (; (count_ >> level) & 1; ++level) {
      value = op_.combine(levels_[level], value);
    }
    levels_[level] = value;
    ++count_;
  }
  C Total() const {
    C total = op_.identity;
    bool first = true;
    for (int level = 0; (count_ >> level) != 0; ++level) {
      if (((count_ >> level) & 1) == 0) continue;
      total = first ? levels_[level] : op_.combine(levels_[level], total);
      first = false;
    }
    return total;
  }

 private:
  const Reduction<C>& op_;
  int64_t count_ = 0;
  C levels_[64];
};

/// The same for kColumns adjacent reductions: runs of kRows rows one after
/// another, runs in pairs.
template <typename C>
class ColumnStack {
 public:
  static constexpr int64_t kColumns = 128;
  static constexpr int64_t kRows = 32;

  explicit ColumnStack(const Reduction<C>& op) : op_(op) {}

  void Clear() {
    rows_ = 0;
    runs_ = 0;
  }

  /// Adds a row of `columns` <= kColumns elements, equally many each time.
  void Push(const C* row, int64_t columns) {
    (rows_ == 0 ? op_.set_row : op_.add_row)(row, run_, columns);
    if (++rows_ == kRows) Carry(columns);
  }

  const C* Total(int64_t columns) {
    if (rows_ > 0) Carry(columns);
    bool first = true;
    for (int level = 0; (runs_ >> level) != 0; ++level) {
      if (((runs_ >> level) & 1) == 0) continue;
      const C* const at = levels_[level];
      if (first) {
        std::copy(at, at + columns, run_);
      } else {
        op_.merge_row(at, run_, columns);
      }
      first = false;
    }
    if (first) std::fill(run_, run_ + columns, op_.identity);
    return run_;
  }

 private:
  void Carry(int64_t columns) {
    int level = 0;
    for (; (runs_ >> level) & 1; ++level) {
      op_.merge_row(levels_[level], run_, columns);
    }
    std::copy(run_, run_ + columns, levels_[level]);
    ++runs_;
    rows_ = 0;
  }

  const Reduction<C>& op_;
  int64_t rows_ = 0;
  int64_t runs_ = 0;
  HWY_ALIGN C run_[kColumns];
  // 2^40 runs exceed any memory.
  HWY_ALIGN C levels_[40][kColumns];
};

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_REDUCE_RUN_INL_H_
