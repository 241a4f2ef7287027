// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/creation.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// Copies strided elements of `element` bytes to row-major `out`.
void CopyStrided(const std::byte* from, ShapeView sizes, ShapeView strides,
                 int64_t element, std::byte*& out) {
  if (IsContiguous(sizes, strides)) {
    const int64_t bytes = NumElements(sizes) * element;
    std::memcpy(out, from, static_cast<size_t>(bytes));
    out += bytes;
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i) {
    CopyStrided(from + i * strides[0] * element, sizes.subspan(1),
                strides.subspan(1), element, out);
  }
}

// Returns the bytes of a dense tensor of sizes from the program.
int64_t CheckedBytes(ShapeView sizes, DType dtype) {
  int64_t bytes = SizeOf(dtype);
  for (const int64_t size : sizes) {
    CH_CHECK_GE(size, 0) << "a tensor of sizes " << ToString(sizes);
    CH_CHECK(!__builtin_mul_overflow(bytes, size, &bytes))
        << "a tensor of sizes " << ToString(sizes) << " of " << dtype
        << " has more bytes than there are numbers for";
  }
  return bytes;
}

}  // namespace

Tensor Empty(ShapeView sizes, DType dtype) {
  RankContext& context = RankContext::Current();
  auto storage = std::make_shared<Storage>(
      context.allocator().Allocate(CheckedBytes(sizes, dtype),
                                   context.memory_class(),
                                   context.current_stream()),
      context.memory_device());
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::move(storage);
  impl->sizes.assign(sizes.begin(), sizes.end());
  impl->strides = ContiguousStrides(sizes);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor Zeros(ShapeView sizes, DType dtype) { return Full(sizes, 0, dtype); }

Tensor Ones(ShapeView sizes, DType dtype) { return Full(sizes, 1, dtype); }

Tensor Full(ShapeView sizes, double value, DType dtype) {
  Tensor tensor = Empty(sizes, dtype);
  FillArgs args{.value = value};
  args.shape.ndim = 1;
  args.shape.sizes[0] = tensor.numel();
  args.out.data = tensor.raw_data();
  args.out.dtype = dtype;
  args.out.strides[0] = 1;
  internal::Launch(&KernelTable::fill, args);
  return tensor;
}

Tensor Arange(int64_t n, DType dtype) {
  Tensor tensor = Empty({n}, dtype);
  internal::Launch(
      &KernelTable::arange,
      ArangeArgs{.out = tensor.raw_data(), .dtype = dtype, .count = n});
  return tensor;
}

template <typename T>
Tensor FromValues(ShapeView sizes, absl::Span<const T> values) {
  Tensor tensor = Empty(sizes, DTypeOf<T>);
  CH_CHECK_EQ(tensor.numel(), static_cast<int64_t>(values.size()))
      << "elements of sizes " << ToString(sizes) << " and values for them";
  const auto write = [](absl::Span<const T> from, void* to) {
    std::memcpy(to, from.data(), from.size() * sizeof(T));
  };
  if (RankContext::Current().current_stream().runs_inline()) {
    WriteFromHost(tensor, [values, write](void* to) { write(values, to); });
  } else {
    // Copies the values, because the task may run after the caller's are gone.
    WriteFromHost(tensor, [copy = std::vector<T>(values.begin(), values.end()),
                           write](void* to) { write(copy, to); });
  }
  return tensor;
}

template Tensor FromValues<float>(ShapeView, absl::Span<const float>);
template Tensor FromValues<double>(ShapeView, absl::Span<const double>);
template Tensor FromValues<int32_t>(ShapeView, absl::Span<const int32_t>);
template Tensor FromValues<int64_t>(ShapeView, absl::Span<const int64_t>);

Tensor ToThisDevice(const Tensor& tensor) {
  CH_CHECK(!tensor.is_distributed())
      << "ToThisDevice of " << tensor.Describe()
      << ": the parts of a distributed tensor are where their ranks compute";
  const RankContext& context = RankContext::Current();
  const Device from = tensor.device();
  if (from == context.device() || from == context.backend().device()) {
    return tensor;
  }
  CH_CHECK(from.is_cpu()) << "ToThisDevice of " << tensor.Describe() << " on "
                          << context.device()
                          << ": only what is in the host's memory comes to a "
                          << "device";
  const Tensor copy = Empty(tensor.sizes(), tensor.dtype());
  const void* const elements = internal::AddressForHost(tensor);
  WriteFromHost(copy,
                [elements, sizes = tensor.sizes(), strides = tensor.strides(),
                 element = SizeOf(tensor.dtype())](void* to) {
                  auto* out = static_cast<std::byte*>(to);
                  CopyStrided(static_cast<const std::byte*>(elements), sizes,
                              strides, element, out);
                });
  return copy;
}

Tensor Deferred(ShapeView sizes, DType dtype, std::string owner) {
  auto storage =
      std::make_shared<Storage>(CheckedBytes(sizes, dtype), std::move(owner));
  return MakeView(std::move(storage), 0, Shape(sizes.begin(), sizes.end()),
                  ContiguousStrides(sizes), dtype);
}

}  // namespace crosshatch
