// SPDX-License-Identifier: Apache-2.0

/// \file
/// Loads runs of elements of any dtype and stride into contiguous buffers of
/// the compute type (float, double or int64_t), and stores them.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_STAGING_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_STAGING_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_STAGING_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_STAGING_INL_H_
#endif

#include <algorithm>

#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// LoadRun and StoreRun if a conversion is necessary.
template <typename C>
void LoadConverted(const void* from, DType dtype, int64_t stride, int64_t count,
                   C* to);
template <typename C>
void StoreConverted(const C* from, void* to, DType dtype, int64_t stride,
                    int64_t count);

/// Loads `count` elements, `stride` apart, into a buffer. C is float, double or
/// int64_t.
template <typename C>
void LoadRun(const void* from, DType dtype, int64_t stride, int64_t count,
             C* to) {
  if (stride == 1 && dtype == DTypeOf<C>) {
    std::copy_n(static_cast<const C*>(from), count, to);
  } else {
    LoadConverted(from, dtype, stride, count, to);
  }
}

/// Stores `count` elements of a buffer, `stride` apart. Integers wrap, which
/// conversions between integers do by themselves.
template <typename C>
void StoreRun(const C* from, void* to, DType dtype, int64_t stride,
              int64_t count) {
  if (stride == 1 && dtype == DTypeOf<C>) {
    std::copy_n(from, count, static_cast<C*>(to));
  } else {
    StoreConverted(from, to, dtype, stride, count);
  }
}

/// Returns `count` contiguous elements as C: in place, or in `buffer`.
template <typename C>
const C* Staged(const void* from, DType dtype, int64_t count, C* buffer) {
  if (dtype == DTypeOf<C>) return static_cast<const C*>(from);
  LoadRun(from, dtype, 1, count, buffer);
  return buffer;
}

/// One operand of a blocked loop that is read. C is float, double or int64_t.
template <typename C>
class StagedInput {
 public:
  StagedInput(const KernelInput& input, const internal::StridedLoop& loop,
              int operand)
      : data_(input.data),
        dtype_(input.dtype),
        stride_(loop.inner_stride(operand)),
        operand_(operand) {}

  /// The block's elements, contiguous. Valid until the next call.
  const C* Load(const internal::StridedLoop& loop,
                const internal::Blocking::Block& block);

 private:
  const void* const data_;
  const DType dtype_;
  const int64_t stride_;
  const int operand_;
  const void* filled_from_ = nullptr;
  int64_t filled_ = 0;
  HWY_ALIGN C buffer_[internal::Blocking::kBlock];
};

/// The operand of a blocked loop that is written. C is float, double or
/// int64_t.
template <typename C>
class StagedOutput {
 public:
  StagedOutput(const KernelOutput& output, WriteMode mode,
               const internal::StridedLoop& loop, int operand)
      : data_(output.data),
        dtype_(output.dtype),
        mode_(mode),
        stride_(loop.inner_stride(operand)),
        operand_(operand) {}

  /// Returns the memory for computing the block's elements, contiguous.
  C* Begin(const internal::StridedLoop& loop,
           const internal::Blocking::Block& block);

  /// Writes the computed elements.
  void End(const internal::StridedLoop& loop,
           const internal::Blocking::Block& block);

 private:
  bool IsDirect(const internal::Blocking::Block& block) const {
    return block.rows == 1 && stride_ == 1 && dtype_ == DTypeOf<C>;
  }
  void* At(const internal::StridedLoop& loop,
           const internal::Blocking::Block& block) const;

  void* const data_;
  const DType dtype_;
  const WriteMode mode_;
  const int64_t stride_;
  const int operand_;
  HWY_ALIGN C buffer_[internal::Blocking::kBlock];
  HWY_ALIGN C old_[internal::Blocking::kBlock];
};

/// to[i] = f(d, from[i]...) on whole vectors up to `end`. MapRun calls it
/// twice, and f, often long, is compiled once: it is not inlined, and takes no
/// count, because for a constant count the compiler would create a second copy.
template <typename T, typename F, typename... From>
HWY_NOINLINE void MapVectors(const F& f, T* to, const T* end,
                             const From*... from) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t count = end - to;
  for (int64_t i = 0; i < count; i += lanes) {
    hn::StoreU(f(d, hn::LoadU(d, from + i)...), d, to + i);
  }
}

/// A partial vector, padded with ones.
template <typename T>
struct PaddedVector {
  HWY_NOINLINE PaddedVector(const T* from, int64_t count) {
    const auto all = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
    std::fill(std::copy(from, from + count, lanes), lanes + all, T(1));
  }
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
};

/// to[i] = f(d, from[i]...) on vectors, for contiguous runs; the last, partial
/// vector is padded with ones.
template <typename T, typename F, typename... From>
void MapRun(const F& f, T* to, int64_t count, const From*... from) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const int64_t rest = count % lanes;
  const int64_t whole = count - rest;
  MapVectors(f, to, to + whole, from...);
  if (rest == 0) return;
  HWY_ALIGN T last[HWY_MAX_BYTES / sizeof(T)];
  MapVectors(f, last, last + lanes,
             PaddedVector<T>(from + whole, rest).lanes...);
  std::copy(last, last + rest, to + whole);
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_STAGING_INL_H_
