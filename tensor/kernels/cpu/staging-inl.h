// SPDX-License-Identifier: Apache-2.0

/// \file
/// Bringing runs of elements of any dtype and stride into contiguous buffers of
/// the type that a kernel computes in (float, double or int64_t), and back.

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

/// to[i * to_stride] = from[i * from_stride], converted.
template <typename To, typename From>
void ConvertRun(const From* from, int64_t from_stride, To* to,
                int64_t to_stride, int64_t count) {
  if (from_stride == 1 && to_stride == 1) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = internal::ConvertElement<To>(from[i]);
    }
  } else if (from_stride == 0) {
    const To value = count > 0 ? internal::ConvertElement<To>(*from) : To{};
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i * to_stride] = internal::ConvertElement<To>(from[i * from_stride]);
    }
  }
}

// Half precision in hardware, which rounds as ConvertElement does.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <>
inline void ConvertRun<float, Float16>(const Float16* from, int64_t from_stride,
                                       float* to, int64_t to_stride,
                                       int64_t count) {
  int64_t i = 0;
  if (from_stride == 1 && to_stride == 1) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, halves + i)), d, to + i);
    }
  }
  for (; i < count; ++i) {
    to[i * to_stride] = internal::ToFloat(from[i * from_stride]);
  }
}
template <>
inline void ConvertRun<Float16, float>(const float* from, int64_t from_stride,
                                       Float16* to, int64_t to_stride,
                                       int64_t count) {
  int64_t i = 0;
  if (from_stride == 1 && to_stride == 1) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    auto* halves = reinterpret_cast<hwy::float16_t*>(to);
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, from + i)), half, halves + i);
    }
  }
  for (; i < count; ++i) {
    to[i * to_stride] = internal::ToFloat16(from[i * from_stride]);
  }
}
#endif

/// Loads `count` elements into a buffer.
template <typename C>
void LoadRun(const void* from, DType dtype, int64_t stride, int64_t count,
             C* to) {
  internal::DispatchDType(dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    ConvertRun(static_cast<const T*>(from), stride, to, 1, count);
  });
}

/// Stores `count` elements of a buffer. Integers wrap, which conversions
/// between integers do by themselves.
template <typename C>
void StoreRun(const C* from, void* to, DType dtype, int64_t stride,
              int64_t count) {
  internal::DispatchDType(dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    ConvertRun(from, 1, static_cast<T*>(to), stride, count);
  });
}

/// `count` contiguous elements as C: where they are, or in `buffer`.
template <typename C>
const C* Staged(const void* from, DType dtype, int64_t count, C* buffer) {
  if (dtype == DTypeOf<C>) return static_cast<const C*>(from);
  LoadRun(from, dtype, 1, count, buffer);
  return buffer;
}

/// One operand of a blocked loop that is read.
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
                const internal::Blocking::Block& block) {
    internal::RowCursor cursor(loop, block.row);
    const int64_t first = cursor.offset(operand_) + block.start * stride_;
    if (block.rows == 1) {
      const void* from = internal::ElementAt(data_, dtype_, first);
      if (stride_ == 1 && dtype_ == DTypeOf<C>) {
        return static_cast<const C*>(from);
      }
      // A broadcast value often serves many blocks.
      if (stride_ == 0 && from == filled_from_ && block.count <= filled_) {
        return buffer_;
      }
      LoadRun(from, dtype_, stride_, block.count, buffer_);
      filled_from_ = stride_ == 0 ? from : nullptr;
      filled_ = block.count;
      return buffer_;
    }
    for (int64_t r = 0; r < block.rows; ++r) {
      LoadRun(internal::ElementAt(data_, dtype_, cursor.offset(operand_)),
              dtype_, stride_, block.count, buffer_ + r * block.count);
      cursor.Next();
    }
    return buffer_;
  }

 private:
  const void* const data_;
  const DType dtype_;
  const int64_t stride_;
  const int operand_;
  const void* filled_from_ = nullptr;
  int64_t filled_ = 0;
  HWY_ALIGN C buffer_[internal::Blocking::kBlock];
};

/// The operand of a blocked loop that is written.
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

  /// Where to compute the block's elements, contiguous.
  C* Begin(const internal::StridedLoop& loop,
           const internal::Blocking::Block& block) {
    if (IsDirect(block) && mode_ == WriteMode::kOverwrite) {
      return static_cast<C*>(At(loop, block));
    }
    return buffer_;
  }

  /// Writes what was computed.
  void End(const internal::StridedLoop& loop,
           const internal::Blocking::Block& block) {
    if (IsDirect(block)) {
      if (mode_ == WriteMode::kOverwrite) return;
      C* HWY_RESTRICT to = static_cast<C*>(At(loop, block));
      for (int64_t i = 0; i < block.count; ++i) to[i] = Sum(to[i], buffer_[i]);
      return;
    }
    internal::RowCursor cursor(loop, block.row);
    for (int64_t r = 0; r < block.rows; ++r) {
      void* to = internal::ElementAt(
          data_, dtype_, cursor.offset(operand_) + block.start * stride_);
      C* from = buffer_ + r * block.count;
      if (mode_ == WriteMode::kAccumulate) {
        LoadRun(to, dtype_, stride_, block.count, old_);
        for (int64_t i = 0; i < block.count; ++i) {
          from[i] = Sum(old_[i], from[i]);
        }
      }
      StoreRun(from, to, dtype_, stride_, block.count);
      cursor.Next();
    }
  }

 private:
  // Integers wrap: unsigned addition does so without undefined behaviour.
  static C Sum(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(static_cast<uint64_t>(a) +
                            static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }

  bool IsDirect(const internal::Blocking::Block& block) const {
    return block.rows == 1 && stride_ == 1 && dtype_ == DTypeOf<C>;
  }
  void* At(const internal::StridedLoop& loop,
           const internal::Blocking::Block& block) const {
    internal::RowCursor cursor(loop, block.row);
    return internal::ElementAt(data_, dtype_,
                               cursor.offset(operand_) + block.start);
  }

  void* const data_;
  const DType dtype_;
  const WriteMode mode_;
  const int64_t stride_;
  const int operand_;
  HWY_ALIGN C buffer_[internal::Blocking::kBlock];
  HWY_ALIGN C old_[internal::Blocking::kBlock];
};

/// to[i] = f(d, from[i]...) on vectors, for contiguous runs; the last, partial
/// vector takes the same way, padded with ones.
template <typename T, typename F>
HWY_INLINE void MapRun(F&& f, T* to, int64_t count, const T* a) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(f(d, hn::LoadU(d, a + i)), d, to + i);
  }
  if (i == count) return;
  HWY_ALIGN T pad[HWY_MAX_BYTES / sizeof(T)];
  std::fill(std::copy(a + i, a + count, pad), pad + lanes, T(1));
  hn::Store(f(d, hn::Load(d, pad)), d, pad);
  std::copy(pad, pad + (count - i), to + i);
}
template <typename T, typename F>
HWY_INLINE void MapRun(F&& f, T* to, int64_t count, const T* a, const T* b) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(f(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, to + i);
  }
  if (i == count) return;
  HWY_ALIGN T pad[2][HWY_MAX_BYTES / sizeof(T)];
  std::fill(std::copy(a + i, a + count, pad[0]), pad[0] + lanes, T(1));
  std::fill(std::copy(b + i, b + count, pad[1]), pad[1] + lanes, T(1));
  hn::Store(f(d, hn::Load(d, pad[0]), hn::Load(d, pad[1])), d, pad[0]);
  std::copy(pad[0], pad[0] + (count - i), to + i);
}
template <typename T, typename F>
HWY_INLINE void MapRun(F&& f, T* to, int64_t count, const T* a, const T* b,
                       const T* c) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(
        f(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i), hn::LoadU(d, c + i)), d,
        to + i);
  }
  if (i == count) return;
  HWY_ALIGN T pad[3][HWY_MAX_BYTES / sizeof(T)];
  std::fill(std::copy(a + i, a + count, pad[0]), pad[0] + lanes, T(1));
  std::fill(std::copy(b + i, b + count, pad[1]), pad[1] + lanes, T(1));
  std::fill(std::copy(c + i, c + count, pad[2]), pad[2] + lanes, T(1));
  hn::Store(f(d, hn::Load(d, pad[0]), hn::Load(d, pad[1]), hn::Load(d, pad[2])),
            d, pad[0]);
  std::copy(pad[0], pad[0] + (count - i), to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_STAGING_INL_H_
