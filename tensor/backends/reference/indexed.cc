// SPDX-License-Identifier: Apache-2.0
// Kernels that go by index, and along one dim.
#include <cstddef>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"
#include "crosshatch/tensor/kernels/reference/lanes.h"

namespace crosshatch::reference {
namespace {

/// Where the element that `at` names lies, if `place` stands for its index of
/// dim `dim`.
int64_t OffsetAt(const KernelShape& shape, const int64_t* at, int dim,
                 int64_t place, const int64_t* strides) {
  return OffsetOf(shape, at, strides) + (place - at[dim]) * strides[dim];
}

/// The place that an element of `index` names.
int64_t PlaceOf(const IndexedDim& dim, const KernelShape& shape,
                const KernelInput& index, const int64_t* at) {
  const int64_t named =
      ReadInteger(index.data, index.dtype, OffsetOf(shape, at, index.strides));
  CH_CHECK(named >= 0 && named < dim.bound)
      << dim.op << ": index " << named << " is out of range: dim " << dim.dim
      << " has " << dim.bound << " elements";
  return named - dim.first;
}

}  // namespace

void GatherKernel(const GatherArgs& args, KernelContext& /*context*/) {
  ForEachElement(args.shape, [&](const int64_t* at) {
    const int64_t place = PlaceOf(args.at, args.shape, args.index, at);
    const int64_t to = OffsetOf(args.shape, at, args.out.strides);
    if (place < 0 || place >= args.at.count) {
      ZeroElement(args.out.data, to, args.out.dtype);
      return;
    }
    CopyElement(args.out.data, to, args.src.data,
                OffsetAt(args.shape, at, args.at.dim, place, args.src.strides),
                args.out.dtype);
  });
}

void ScatterKernel(const ScatterArgs& args, KernelContext& /*context*/) {
  ForEachElement(args.shape, [&](const int64_t* at) {
    const int64_t place = PlaceOf(args.at, args.shape, args.index, at);
    if (place < 0 || place >= args.at.count) return;
    const int64_t from = OffsetOf(args.shape, at, args.src.strides);
    const int64_t to =
        OffsetAt(args.shape, at, args.at.dim, place, args.out.strides);
    if (args.mode == WriteMode::kOverwrite) {
      CopyElement(args.out.data, to, args.src.data, from, args.out.dtype);
    } else if (IsInteger(args.out.dtype)) {
      PutInteger(args.out.data, args.out.dtype, to,
                 ReadInteger(args.src.data, args.src.dtype, from), args.mode);
    } else {
      Put(args.out.data, args.out.dtype, to,
          ReadElement(args.src.data, args.src.dtype, from), args.mode);
    }
  });
}

void CheckIndexRangeKernel(const CheckIndexRangeArgs& args,
                           KernelContext& /*context*/) {
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t index = ReadInteger(args.indices, args.dtype, i);
    CH_CHECK((index >= 0 && index < args.bound) || index == args.ignored)
        << args.op << ": " << args.index << " " << index << " at " << i
        << " is out of range: there are " << args.bound << " " << args.named;
  }
}

void CumSumKernel(const CumSumArgs& args, KernelContext& /*context*/) {
  if (!IsInteger(args.in.dtype)) {
    PutAll(args.shape, args.out, CumSum(args).values);
    return;
  }
  const int64_t last = args.shape.sizes[args.dim] - 1;
  ForEachElement(args.shape, [&](const int64_t* at) {
    // All that come before it, from the start.
    int64_t sum = 0;
    const int64_t first = args.reverse ? at[args.dim] : 0;
    const int64_t end = args.reverse ? last : at[args.dim];
    for (int64_t i = first; i <= end; ++i) {
      sum = Plus(sum, ReadInteger(args.in.data, args.in.dtype,
                                  OffsetAt(args.shape, at, args.dim, i,
                                           args.in.strides)));
    }
    WriteInteger(args.out.data, args.out.dtype,
                 OffsetOf(args.shape, at, args.out.strides), sum);
  });
}

void SortKernel(const SortArgs& args, KernelContext& /*context*/) {
  const std::vector<int64_t> places = Sort(args).indices;
  KernelShape taken = args.shape;
  taken.sizes[args.dim] = args.count;
  size_t next = 0;
  ForEachElement(taken, [&](const int64_t* at) {
    const int64_t place = places[next++];
    CopyElement(args.values.data, OffsetOf(taken, at, args.values.strides),
                args.in.data,
                OffsetAt(taken, at, args.dim, place, args.in.strides),
                args.in.dtype);
    const int64_t label = args.labels.data == nullptr
                              ? place
                              : ReadInteger(args.labels.data, args.labels.dtype,
                                            OffsetAt(taken, at, args.dim, place,
                                                     args.labels.strides));
    WriteInteger(args.indices.data, args.indices.dtype,
                 OffsetOf(taken, at, args.indices.strides), label);
  });
}

}  // namespace crosshatch::reference
