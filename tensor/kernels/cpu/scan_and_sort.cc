// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/element.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

namespace crosshatch::internal {
namespace {

/// The lanes of a tensor along one dim, in row-major order of the other dims.
class Lanes {
 public:
  Lanes(const KernelShape& shape, int dim) {
    for (int d = 0; d < shape.ndim; ++d) {
      if (d == dim) continue;
      dims_[ndim_] = d;
      sizes_[ndim_++] = shape.sizes[d];
      count_ *= shape.sizes[d];
    }
  }

  int64_t count() const { return count_; }

  /// Where lane `lane` of an operand starts, in elements.
  int64_t Offset(int64_t lane, const int64_t* strides) const {
    int64_t offset = 0;
    for (int i = ndim_ - 1; i >= 0; --i) {
      offset += lane % sizes_[i] * strides[dims_[i]];
      lane /= sizes_[i];
    }
    return offset;
  }

 private:
  int ndim_ = 0;
  int dims_[kMaxKernelDims] = {};
  int64_t sizes_[kMaxKernelDims] = {};
  int64_t count_ = 1;
};

// Number of lanes summed together: an addition depends only on the previous one
// in its lane. Fewer if each lane is a separate memory stream.
constexpr int64_t kBlock = 64;
constexpr int64_t kFarBlock = 8;

template <typename In>
using SumOf =
    std::conditional_t<std::is_integral_v<In>, uint64_t /* wraps */, double>;
template <typename In>
using OutOf = std::conditional_t<std::is_integral_v<In>, int64_t, In>;

// Up to kBlock lanes, `step` elements apart.
template <typename In>
struct Block {
  int64_t lanes;
  const In* in;
  OutOf<In>* out;
  int64_t in_step;
  int64_t out_step;

  void Run(const CumSumArgs& args) const {
    const int64_t n = args.shape.sizes[args.dim];
    const int64_t in_stride = args.in.strides[args.dim];
    const int64_t out_stride = args.out.strides[args.dim];
    SumOf<In> sums[kBlock] = {};
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = args.reverse ? n - 1 - i : i;
      const In* from = in + at * in_stride;
      OutOf<In>* to = out + at * out_stride;
      if (in_step == 1 && out_step == 1) {  // Vectorizes.
        Add(from, to, 1, 1, sums);
      } else {
        Add(from, to, in_step, out_step, sums);
      }
    }
  }

  void Add(const In* from, OutOf<In>* to, int64_t from_step, int64_t to_step,
           SumOf<In>* sums) const {
    for (int64_t c = 0; c < lanes; ++c) {
      sums[c] += ConvertElement<SumOf<In>>(from[c * from_step]);
      to[c * to_step] = ConvertElement<OutOf<In>>(sums[c]);
    }
  }
};

template <typename In>
void CumSumAs(const CumSumArgs& args, KernelContext& context) {
  const Lanes lanes(args.shape, args.dim);
  const In* in = static_cast<const In*>(args.in.data);
  auto* out = static_cast<OutOf<In>*>(args.out.data);
  ForRanges(
      context, lanes.count(), args.shape.sizes[args.dim],
      [&](int64_t begin, int64_t end) {
        Block<In> block = {};
        for (int64_t lane = begin; lane < end; lane += block.lanes) {
          const int64_t in_at = lanes.Offset(lane, args.in.strides);
          const int64_t out_at = lanes.Offset(lane, args.out.strides);
          block = {1, in + in_at, out + out_at, 0, 0};
          if (lane + 1 < end) {
            block.in_step = lanes.Offset(lane + 1, args.in.strides) - in_at;
            block.out_step = lanes.Offset(lane + 1, args.out.strides) - out_at;
          }
          const bool near = block.in_step == 1 && block.out_step == 1;
          const int64_t most = std::min(near ? kBlock : kFarBlock, end - lane);
          while (block.lanes < most &&
                 lanes.Offset(lane + block.lanes, args.in.strides) ==
                     in_at + block.lanes * block.in_step &&
                 lanes.Offset(lane + block.lanes, args.out.strides) ==
                     out_at + block.lanes * block.out_step) {
            ++block.lanes;
          }
          block.Run(args);
        }
      });
}

}  // namespace

void CpuCumSum(const CumSumArgs& args, KernelContext& context) {
  const DType dtype = args.in.dtype;
  CH_CHECK(args.out.dtype == (IsFloatingPoint(dtype) ? dtype : DType::kInt64))
      << "cumsum of " << Name(dtype) << " to " << Name(args.out.dtype);
  DispatchDType(dtype,
                [&](auto zero) { CumSumAs<decltype(zero)>(args, context); });
}

namespace {

// Keys are unsigned integers that compare as the elements do. Equal ones are
// distinguished by their indices, so that any sort is stable.

template <typename T>
using KeyOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

uint32_t Key(float x) {
  if (x != x) return std::numeric_limits<uint32_t>::max();
  if (x == 0) x = 0;  // Not -0.
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits ^ (bits >> 31 != 0 ? ~uint32_t{0} : uint32_t{1} << 31);
}
uint64_t Key(double x) {
  if (x != x) return std::numeric_limits<uint64_t>::max();
  if (x == 0) x = 0;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  return bits ^ (bits >> 63 != 0 ? ~uint64_t{0} : uint64_t{1} << 63);
}
uint32_t Key(BFloat16 x) { return Key(ToFloat(x)); }
uint32_t Key(Float16 x) { return Key(ToFloat(x)); }
uint32_t Key(int32_t x) {
  return static_cast<uint32_t>(x) ^ (uint32_t{1} << 31);
}
uint64_t Key(int64_t x) {
  return static_cast<uint64_t>(x) ^ (uint64_t{1} << 63);
}
uint32_t Key(uint16_t x) { return x; }
uint32_t Key(bool x) { return x ? 1 : 0; }

// A key and an index packed into one number.
struct ShortEntry {
  uint64_t bits;

  ShortEntry(uint32_t key, int64_t place)
      : bits(uint64_t{key} << 32 | static_cast<uint32_t>(place)) {}
  int64_t place() const { return static_cast<uint32_t>(bits); }
  friend bool operator<(ShortEntry a, ShortEntry b) { return a.bits < b.bits; }
};

struct LongEntry {
  uint64_t key;
  int64_t at;

  LongEntry(uint64_t key, int64_t place) : key(key), at(place) {}
  int64_t place() const { return at; }
  friend bool operator<(const LongEntry& a, const LongEntry& b) {
    return a.key != b.key ? a.key < b.key : a.at < b.at;
  }
};

int64_t LaneLength(const SortArgs& args) {
  return args.shape.ndim == 0 ? 1 : args.shape.sizes[args.dim];
}

bool IsShort(const SortArgs& args) {
  return SizeOf(args.in.dtype) <= 4 &&
         LaneLength(args) <= int64_t{std::numeric_limits<uint32_t>::max()};
}

int64_t EntryBytes(const SortArgs& args) {
  return IsShort(args) ? sizeof(ShortEntry) : sizeof(LongEntry);
}

int64_t Parts(const SortArgs& args, const Lanes& lanes) {
  const int64_t n = LaneLength(args);
  const auto levels = std::bit_width(static_cast<uint64_t>(n));
  return n == 0 ? 0 : PartsFor(lanes.count(), n * 2 * levels);
}

template <typename Entry, typename T>
class LaneSort {
 public:
  LaneSort(const SortArgs& args, Entry* entries)
      : args_(args), entries_(entries), length_(LaneLength(args)) {}

  void Run(const Lanes& lanes, int64_t lane) const {
    const T* in = static_cast<const T*>(args_.in.data) +
                  lanes.Offset(lane, args_.in.strides);
    const int64_t stride = args_.in.strides[args_.dim];
    const auto flip = static_cast<KeyOf<T>>(args_.descending ? -1 : 0);
    for (int64_t i = 0; i < length_; ++i) {
      entries_[i] = Entry(Key(in[i * stride]) ^ flip, i);
    }
    Take();
    Write(lanes, lane, in, stride);
  }

 private:
  void Take() const {
    Entry* const end = entries_ + args_.count;
    if (args_.count < length_) {
      std::nth_element(entries_, end, entries_ + length_);
    }
    if (args_.sorted) {
      std::sort(entries_, end);
    } else {
      std::sort(entries_, end, [](const Entry& a, const Entry& b) {
        return a.place() < b.place();
      });
    }
  }

  void Write(const Lanes& lanes, int64_t lane, const T* in,
             int64_t stride) const {
    T* values = static_cast<T*>(args_.values.data) +
                lanes.Offset(lane, args_.values.strides);
    int64_t* indices = static_cast<int64_t*>(args_.indices.data) +
                       lanes.Offset(lane, args_.indices.strides);
    const auto* labels = static_cast<const int64_t*>(args_.labels.data);
    if (labels != nullptr) labels += lanes.Offset(lane, args_.labels.strides);
    for (int64_t i = 0; i < args_.count; ++i) {
      const int64_t place = entries_[i].place();
      values[i * args_.values.strides[args_.dim]] = in[place * stride];
      indices[i * args_.indices.strides[args_.dim]] =
          labels == nullptr ? place
                            : labels[place * args_.labels.strides[args_.dim]];
    }
  }

  const SortArgs& args_;
  Entry* const entries_;
  const int64_t length_;
};

template <typename Entry, typename T>
void SortAs(const SortArgs& args, KernelContext& context) {
  const Lanes lanes(args.shape, args.dim);
  const int64_t parts = Parts(args, lanes);
  ForParts(context, parts, [&](int64_t part) {
    const LaneSort<Entry, T> sort(
        args, static_cast<Entry*>(args.workspace) + part * LaneLength(args));
    const PartRange range = RangeOfPart(lanes.count(), parts, part);
    for (int64_t lane = range.begin; lane < range.end; ++lane) {
      sort.Run(lanes, lane);
    }
  });
}

}  // namespace

int64_t CpuSortWorkspaceBytes(const SortArgs& args) {
  if (args.count == 0) return 0;
  return Parts(args, Lanes(args.shape, args.dim)) * LaneLength(args) *
         EntryBytes(args);
}

void CpuSort(const SortArgs& args, KernelContext& context) {
  if (args.count == 0) return;
  DispatchDType(args.in.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      if (IsShort(args)) return SortAs<ShortEntry, T>(args, context);
    }
    SortAs<LongEntry, T>(args, context);
  });
}

}  // namespace crosshatch::internal
