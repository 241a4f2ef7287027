// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "crosshatch/tensor/kernels/cpu/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/staging.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

/// Writes to[i] = from[i], converted.
template <typename To, typename From>
void Convert(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = internal::ConvertElement<To>(from[i]);
  }
}

// Converts half precision in hardware, which rounds as ConvertElement does.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <>
void Convert<float, Float16>(const Float16* from, float* to, int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, halves + i)), d, to + i);
  }
  for (; i < count; ++i) to[i] = internal::ToFloat(from[i]);
}
template <>
void Convert<Float16, float>(const float* from, Float16* to, int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* halves = reinterpret_cast<hwy::float16_t*>(to);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, from + i)), half, halves + i);
  }
  for (; i < count; ++i) to[i] = internal::ToFloat16(from[i]);
}
#endif

template <typename C>
void LoadContiguous(const void* from, DType dtype, int64_t count, C* to) {
  internal::DispatchDType(dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    Convert(static_cast<const T*>(from), to, count);
  });
}

template <typename C>
void StoreContiguous(const C* from, void* to, DType dtype, int64_t count) {
  internal::DispatchDType(dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    Convert(from, static_cast<T*>(to), count);
  });
}

// Integers wrap: unsigned addition does so without undefined behaviour.
template <typename C>
C Sum(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

// Strided elements are made contiguous before or after the conversion, so that
// there is one vectorized loop for each pair of dtypes.
constexpr int64_t kPiece = 256;

template <typename C>
HWY_NOINLINE void LoadStrided(const void* from, DType dtype, int64_t stride,
                              int64_t count, C* to) {
  HWY_ALIGN std::byte piece[kPiece * sizeof(int64_t)];
  for (int64_t done = 0; done < count; done += kPiece) {
    const int64_t n = std::min(kPiece, count - done);
    internal::CopyRun(internal::ElementAt(from, dtype, done * stride), stride,
                      piece, 1, dtype, n);
    LoadContiguous(piece, dtype, n, to + done);
  }
}

template <typename C>
HWY_NOINLINE void StoreStrided(const C* from, void* to, DType dtype,
                               int64_t stride, int64_t count) {
  HWY_ALIGN std::byte piece[kPiece * sizeof(int64_t)];
  for (int64_t done = 0; done < count; done += kPiece) {
    const int64_t n = std::min(kPiece, count - done);
    StoreContiguous(from + done, piece, dtype, n);
    internal::CopyRun(piece, 1, internal::ElementAt(to, dtype, done * stride),
                      stride, dtype, n);
  }
}

}  // namespace

template <typename C>
void LoadConverted(const void* from, DType dtype, int64_t stride, int64_t count,
                   C* to) {
  if (stride == 1 || count <= 1) {
    LoadContiguous(from, dtype, count, to);
  } else if (stride == 0) {
    LoadContiguous(from, dtype, 1, to);
    std::fill(to + 1, to + count, *to);
  } else if (dtype == DTypeOf<C>) {
    internal::CopyRun(from, stride, to, 1, dtype, count);
  } else {
    LoadStrided(from, dtype, stride, count, to);
  }
}

template <typename C>
void StoreConverted(const C* from, void* to, DType dtype, int64_t stride,
                    int64_t count) {
  if (stride == 1 || count <= 1) {
    StoreContiguous(from, to, dtype, count);
  } else if (dtype == DTypeOf<C>) {
    internal::CopyRun(from, 1, to, stride, dtype, count);
  } else {
    StoreStrided(from, to, dtype, stride, count);
  }
}

template <typename C>
const C* StagedInput<C>::Load(const internal::StridedLoop& loop,
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
    LoadRun(internal::ElementAt(data_, dtype_, cursor.offset(operand_)), dtype_,
            stride_, block.count, buffer_ + r * block.count);
    cursor.Next();
  }
  return buffer_;
}

template <typename C>
C* StagedOutput<C>::Begin(const internal::StridedLoop& loop,
                          const internal::Blocking::Block& block) {
  if (IsDirect(block) && mode_ == WriteMode::kOverwrite) {
    return static_cast<C*>(At(loop, block));
  }
  return buffer_;
}

template <typename C>
void StagedOutput<C>::End(const internal::StridedLoop& loop,
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

template <typename C>
void* StagedOutput<C>::At(const internal::StridedLoop& loop,
                          const internal::Blocking::Block& block) const {
  internal::RowCursor cursor(loop, block.row);
  return internal::ElementAt(data_, dtype_,
                             cursor.offset(operand_) + block.start);
}

template void LoadConverted(const void*, DType, int64_t, int64_t, float*);
template void LoadConverted(const void*, DType, int64_t, int64_t, double*);
template void LoadConverted(const void*, DType, int64_t, int64_t, int64_t*);
template void StoreConverted(const float*, void*, DType, int64_t, int64_t);
template void StoreConverted(const double*, void*, DType, int64_t, int64_t);
template void StoreConverted(const int64_t*, void*, DType, int64_t, int64_t);
template class StagedInput<float>;
template class StagedInput<double>;
template class StagedInput<int64_t>;
template class StagedOutput<float>;
template class StagedOutput<double>;
template class StagedOutput<int64_t>;

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();
