// SPDX-License-Identifier: Apache-2.0
// Lanes are converted to keys, which are integers in the order of the elements,
// and sorted with their indices. Then the selected elements are written.
#include <bit>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/stable_sort.h"

namespace crosshatch::internal {
namespace {

constexpr uint64_t kSign = uint64_t{1} << 63;

/// Returns equal keys for equal elements, including zeros of either sign and
/// all NaN. NaN has the highest key.
__device__ inline uint64_t KeyOf(const void* data, DType dtype, int64_t index) {
  if (!IsFloatingPoint(dtype)) {
    return static_cast<uint64_t>(LoadElement<int64_t>(data, dtype, index)) ^
           kSign;
  }
  // Any floating-point dtype converts to double. Adding 0 makes -0 a +0.
  const double value = LoadElement<double>(data, dtype, index) + 0.0;
  if (value != value) return ~uint64_t{0};
  const auto bits = std::bit_cast<uint64_t>(value);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

/// Lanes of an operand, by number.
struct Lanes {
  Strided<1> beside;  ///< The operand without the dim.
  int64_t stride;     ///< Of the dim.

  __device__ int64_t Offset(int64_t lane, int64_t i) const {
    int64_t offsets[1];
    beside.Locate(lane, offsets);
    return offsets[0] + i * stride;
  }
};

Lanes LanesOf(const SortArgs& args, const StridedOperand& operand) {
  KernelShape lanes = args.shape;
  lanes.sizes[args.dim] = 1;
  // Lanes are in row-major order of the other dims for any strides, so lane n
  // is the same in all operands.
  Lanes result;
  result.stride = operand.strides[args.dim];
  result.beside.loop = StridedLoop::Make(lanes, {operand.strides}, -1);
  result.beside.data[0] = operand.data;
  result.beside.dtypes[0] = operand.dtype;
  result.beside.vectors_per_row = result.beside.loop.inner();
  result.beside.vectors =
      result.beside.loop.rows() * result.beside.vectors_per_row;
  return result;
}

__global__ void __launch_bounds__(256)
    KeysKernel(Lanes in, int64_t length, bool descending, uint64_t* keys,
               int64_t* indices) {
  const int64_t items = in.beside.vectors * length;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t lane = item / length;
    const int64_t i = item - lane * length;
    const uint64_t key =
        KeyOf(in.beside.data[0], in.beside.dtypes[0], in.Offset(lane, i));
    StoreGlobal(keys + item, descending ? ~key : key);
    StoreGlobal(indices + item, i);
  }
}

/// The first `count` indices of each lane, as keys and values.
__global__ void __launch_bounds__(256)
    TakenKernel(int64_t lanes, int64_t length, int64_t count,
                const int64_t* indices, uint64_t* keys, int64_t* values) {
  for (int64_t item = GlobalThread(); item < lanes * count;
       item += GlobalThreads()) {
    const int64_t lane = item / count;
    const auto index =
        LoadGlobal<int64_t>(indices + lane * length + item - lane * count);
    StoreGlobal(keys + item, static_cast<uint64_t>(index));
    StoreGlobal(values + item, index);
  }
}

/// Writes the elements at indices [lanes][length], of which `count` are
/// selected.
__global__ void __launch_bounds__(256)
    TakeKernel(Lanes in, Lanes labels, Lanes values, Lanes indices,
               int64_t length, int64_t count, const int64_t* order) {
  const int64_t items = in.beside.vectors * count;
  const int64_t size = SizeOf(in.beside.dtypes[0]);
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t lane = item / count;
    const int64_t i = item - lane * count;
    const auto from = LoadGlobal<int64_t>(order + lane * length + i);
    CopyBits(values.beside.data[0], values.Offset(lane, i), in.beside.data[0],
             in.Offset(lane, from), size);
    const int64_t label = labels.beside.data[0] == nullptr
                              ? from
                              : LoadElement<int64_t>(labels.beside.data[0],
                                                     labels.beside.dtypes[0],
                                                     labels.Offset(lane, from));
    StoreElement(indices.beside.data[0], indices.beside.dtypes[0],
                 indices.Offset(lane, i), label);
  }
}

/// The four arrays of the sort, then its workspace.
struct SortLayout {
  explicit SortLayout(const SortArgs& args) {
    for (int d = 0; d < args.shape.ndim; ++d) {
      if (d != args.dim) lanes *= args.shape.sizes[d];
    }
    length = args.shape.sizes[args.dim];
    array_bytes = (lanes * length * 8 + 63) / 64 * 64;
    if (lanes * length * args.count == 0) return;
    // A second sort, of the selected elements, needs no more.
    bytes = 4 * array_bytes + StableSortWorkspaceBytes(lanes, length);
  }
  int64_t lanes = 1;
  int64_t length = 0;
  int64_t array_bytes = 0;
  int64_t bytes = 0;
};

}  // namespace

int64_t CudaSortWorkspaceBytes(const SortArgs& args) {
  return SortLayout(args).bytes;
}

void CudaSort(const SortArgs& args, KernelContext& context) {
  const SortLayout layout(args);
  if (layout.bytes == 0) return;
  CH_CHECK(args.workspace != nullptr) << "sort kernel: no workspace";
  auto* const memory = static_cast<char*>(args.workspace);
  const auto array = [&](int i) { return memory + i * layout.array_bytes; };
  auto* const keys = reinterpret_cast<uint64_t*>(array(0));
  auto* const indices = reinterpret_cast<int64_t*>(array(1));
  StableSortArgs sort;
  sort.segments = layout.lanes;
  sort.length = layout.length;
  sort.keys = keys;
  sort.values = indices;
  sort.sorted_keys = reinterpret_cast<uint64_t*>(array(2));
  sort.sorted_values = reinterpret_cast<int64_t*>(array(3));
  sort.workspace = array(4);
  const Lanes in = LanesOf(args, AsOperand(args.in));
  LaunchKernel("sort_keys", &KeysKernel,
               GeometryOfItems(layout.lanes * layout.length), context, in,
               layout.length, args.descending, keys, indices);
  StableSort(sort, context);
  int64_t taken_length = layout.length;
  if (!args.sorted) {
    // The selected elements, in the order of their indices.
    taken_length = args.count;
    LaunchKernel(
        "sort_taken", &TakenKernel, GeometryOfItems(layout.lanes * args.count),
        context, layout.lanes, layout.length, args.count,
        static_cast<const int64_t*>(sort.sorted_values), keys, indices);
    sort.length = args.count;
    StableSort(sort, context);
  }
  LaunchKernel("sort_take", &TakeKernel,
               GeometryOfItems(layout.lanes * args.count), context, in,
               LanesOf(args, AsOperand(args.labels)),
               LanesOf(args, AsOperand(args.values)),
               LanesOf(args, AsOperand(args.indices)), taken_length, args.count,
               static_cast<const int64_t*>(sort.sorted_values));
}

}  // namespace crosshatch::internal
