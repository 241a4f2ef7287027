// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_KERNEL_TESTUTIL_H_
#define CROSSHATCH_TENSOR_KERNELS_KERNEL_TESTUTIL_H_

/// \file
/// Shared code of kernel tests: operands in many layouts, runs on the device
/// under test, and comparison within derived bounds.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::kernel_test {

using reference::Real;
using reference::Reals;

/// A generator with the same values on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  /// Below `bound`.
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  /// In [low, high), a multiple of 2^-12 of the range.
  double In(double low, double high);

 private:
  uint64_t state_;
};

enum class LayoutKind {
  kContiguous,
  kTransposed,      ///< Dims stored in reverse order.
  kPadded,          ///< The inner dim has stride 3, outer ones have gaps.
  kBroadcastInner,  ///< Inputs only: stride 0.
  kBroadcastOuter,  ///< Inputs only: all strides but the inner one 0.
  /// The inner dim has stride 1. Rows are padded to a multiple of 16 elements,
  /// at least 8 of padding: each begins at a vector, and may end within one.
  kAlignedRows,
  /// The inner dim has stride 1 and rows an odd one: most begin at no vector.
  kUnalignedRows,
};

/// Rows that together take each path of kernels that process vectors of up to
/// 16 elements: whole vectors, ends of rows, more columns than a block keeps.
struct RowsCase {
  int64_t cols;
  LayoutKind layout;
};
inline constexpr RowsCase kRowsCases[] = {
    {8, LayoutKind::kContiguous},     {8, LayoutKind::kAlignedRows},
    {61, LayoutKind::kAlignedRows},   {64, LayoutKind::kContiguous},
    {64, LayoutKind::kUnalignedRows}, {4096, LayoutKind::kContiguous},
    {4096, LayoutKind::kAlignedRows}, {8200, LayoutKind::kContiguous},
    {8203, LayoutKind::kAlignedRows}, {8203, LayoutKind::kUnalignedRows},
};
inline constexpr DType kSixteenBitDTypes[] = {DType::kBFloat16,
                                              DType::kFloat16};

/// Allocates memory that the device under test and the test itself can access
/// (Device::Allocate).
template <typename T>
struct DeviceAllocator {
  using value_type = T;
  DeviceAllocator() = default;
  template <typename U>
  DeviceAllocator(const DeviceAllocator<U>&) {}
  T* allocate(size_t count);
  void deallocate(T* data, size_t count);
  friend bool operator==(const DeviceAllocator&, const DeviceAllocator&) {
    return true;
  }
};
template <typename T>
using DeviceVector = std::vector<T, DeviceAllocator<T>>;
using Bytes = DeviceVector<std::byte>;

/// A buffer with sizes and strides; starts undefined-looking (all bytes 0xFF,
/// which is NaN in every floating point dtype).
class Operand {
 public:
  Operand(DType dtype, std::vector<int64_t> sizes,
          LayoutKind layout = LayoutKind::kContiguous);

  /// Fills with random values in [low, high) (integers for integer dtypes).
  Operand& Fill(Random& random, double low, double high);
  /// Sets the elements, in row-major order.
  Operand& Set(const Reals& values);

  KernelInput in() const;
  KernelOutput out();
  KernelShape shape() const;
  Reals Read() const;

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t stride(int d) const { return strides_[static_cast<size_t>(d)]; }
  int64_t numel() const;
  /// Returns row `row` of a matrix.
  Reals ReadRow(int64_t row) const;
  const Bytes& bytes() const { return bytes_; }
  void set_bytes(const Bytes& bytes) { bytes_ = bytes; }

  /// \name Conversions to operands of row and attention kernels
  /// @{
  RowsInput rows() const { return {data(), strides_[0]}; }
  RowsOutput rows_out() { return {data(), strides_[0]}; }
  HeadsInput heads() const {
    return {data(), strides_[0], strides_[1], strides_[2]};
  }
  HeadsOutput heads_out() {
    return {data(), strides_[0], strides_[1], strides_[2]};
  }
  /// @}

 private:
  DType dtype_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  Bytes bytes_;
};

KernelShape ShapeOf(const std::vector<int64_t>& sizes);

/// The device whose kernels a test binary tests. A library that is linked in
/// calls SetDevice.
class Device {
 public:
  virtual ~Device() = default;
  virtual const KernelTable& kernels() const = 0;
  /// Returns the number of ways to run a kernel, which must give the same bits:
  /// on pools of several widths, with threads in several orders.
  virtual int ways() const = 0;
  /// Returns a context whose kernels have run when their call returns.
  virtual KernelContext& ContextOf(int way) const = 0;
  /// Ends the program if a kernel that ran has found an error.
  virtual void Check(int way) const = 0;
  /// \name Memory that kernels and the host can access
  /// That of the process, unless the device overrides it.
  /// @{
  virtual void* Allocate(size_t bytes) const;
  virtual void Free(void* data) const;
  /// @}
};

/// \param device outlives all tests.
void SetDevice(const Device* device);

/// Memory of the device under test.
void* AllocateOnDevice(size_t bytes);
void FreeOnDevice(void* data);

template <typename T>
T* DeviceAllocator<T>::allocate(size_t count) {
  return static_cast<T*>(AllocateOnDevice(count * sizeof(T)));
}
template <typename T>
void DeviceAllocator<T>::deallocate(T* data, size_t /*count*/) {
  FreeOnDevice(data);
}

/// The kernels under test, and a context for them.
const KernelTable& Kernels();
KernelContext& Context();

/// A kernel of the table, such as &KernelTable::copy.
template <typename Args>
using Kernel = void (*KernelTable::*)(const Args&, KernelContext&);

/// Runs `kernel` in the device's first way.
void Run(absl::FunctionRef<void(KernelContext&)> kernel);
template <typename Args>
void RunKernel(Kernel<Args> kernel, const std::type_identity_t<Args>& args) {
  Run([&](KernelContext& context) { (Kernels().*kernel)(args, context); });
}

/// Runs `kernel` in all ways of the device, from the same initial outputs, and
/// expects the same bits each time. Bytes between and after the elements of an
/// output must stay unchanged.
void RunAllWays(const std::vector<Operand*>& outputs,
                absl::FunctionRef<void(KernelContext&)> kernel,
                const std::string& what);
template <typename Args>
void RunAllWays(Kernel<Args> kernel, const std::type_identity_t<Args>& args,
                const std::vector<Operand*>& outputs, const std::string& what) {
  RunAllWays(
      outputs,
      [&](KernelContext& context) { (Kernels().*kernel)(args, context); },
      what);
}

/// Expects |actual - expected| <= bound for each element. The result in the
/// compute type may differ by `bound` and is then rounded to `dtype`.
/// Infinities and NaN must match. Reports the worst element.
void ExpectWithin(const Reals& actual, const Reals& expected,
                  const Reals& bounds, DType dtype, const std::string& what);

/// gamma(n) = n u / (1 - n u): the error of n roundings in `dtype`'s compute
/// type (float for 16-bit floats).
Real Gamma(DType dtype, int64_t n);
/// The dtype that elements of `dtype` are computed in.
DType ComputeDType(DType dtype);

/// Returns the smallest normal number of `dtype`'s compute type. Kernels may
/// flush exponentials below it to 0.
Real SmallestNormal(DType dtype);

/// Returns whether AllOrFew returns `few`.
bool AreCasesFew();

/// Returns `all`, or `few` if $CROSSHATCH_KERNEL_CASES is "few". The gate sets
/// it for emulated kernels, which it runs all, through each of their paths; the
/// nightly run tries all sizes.
template <typename T>
std::vector<T> AllOrFew(std::initializer_list<T> all,
                        std::initializer_list<T> few) {
  return AreCasesFew() ? few : all;
}

inline constexpr DType kFloatDTypes[] = {DType::kFloat32, DType::kFloat64,
                                         DType::kBFloat16, DType::kFloat16};
inline constexpr DType kAllDTypes[] = {
    DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16,
    DType::kInt32,   DType::kInt64,   DType::kUInt16,   DType::kBool};

/// Memory for a kernel's workspace, aligned, with canaries after it. Its bytes
/// are initially 0xFF.
class Workspace {
 public:
  explicit Workspace(int64_t bytes);
  /// Expects that nothing was written after the workspace.
  ~Workspace();
  void* data() { return data_; }

 private:
  int64_t bytes_;
  Bytes storage_;
  std::byte* data_;
};

}  // namespace crosshatch::kernel_test

#endif  // CROSSHATCH_TENSOR_KERNELS_KERNEL_TESTUTIL_H_
