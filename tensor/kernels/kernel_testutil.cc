// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/kernel_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>

#include "crosshatch/base/check.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

constexpr int64_t kCanaries = 64;

const Device* device_under_test = nullptr;

const Device& TheDevice() {
  CH_CHECK(device_under_test != nullptr)
      << "the binary links no device to test the kernels of";
  return *device_under_test;
}

// Returns `bytes` with the elements of `operand`.
Bytes WithElementsOf(const Operand& operand, Bytes bytes) {
  const auto size = static_cast<size_t>(SizeOf(operand.dtype()));
  for (int64_t offset :
       reference::Offsets(operand.shape(), operand.in().strides)) {
    const size_t at = static_cast<size_t>(offset) * size;
    std::memcpy(bytes.data() + at, operand.bytes().data() + at, size);
  }
  return bytes;
}

}  // namespace

uint64_t Random::Next() {
  // SplitMix64.
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double Random::In(double low, double high) {
  return low + (high - low) * static_cast<double>(Next() >> 52) / 4096.0;
}

KernelShape ShapeOf(const std::vector<int64_t>& sizes) {
  KernelShape shape;
  shape.ndim = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), shape.sizes);
  return shape;
}

Operand::Operand(DType dtype, std::vector<int64_t> sizes, LayoutKind layout)
    : dtype_(dtype), sizes_(std::move(sizes)), strides_(sizes_.size()) {
  const size_t ndim = sizes_.size();
  std::vector<size_t> order(ndim);
  std::iota(order.begin(), order.end(), size_t{0});
  if (layout != LayoutKind::kTransposed) {
    std::reverse(order.begin(), order.end());
  }
  // Assign strides from the fastest dim to the slowest.
  int64_t stride = layout == LayoutKind::kPadded ? 3 : 1;
  bool is_inner = true;
  for (size_t d : order) {
    const bool broadcast =
        (layout == LayoutKind::kBroadcastInner && is_inner) ||
        (layout == LayoutKind::kBroadcastOuter && !is_inner);
    strides_[d] = broadcast ? 0 : stride;
    if (!broadcast) stride *= sizes_[d];
    if (layout == LayoutKind::kPadded) stride += 5;
    if (is_inner && layout == LayoutKind::kAlignedRows) {
      stride = (stride + 8 + 15) / 16 * 16;
    }
    if (is_inner && layout == LayoutKind::kUnalignedRows) {
      stride = (stride + 4) | 1;
    }
    is_inner = false;
  }
  bytes_.assign(static_cast<size_t>((stride + 8) * SizeOf(dtype)),
                std::byte{0xFF});
  if (dtype == DType::kBool) {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{1});
  }
}

Operand& Operand::Fill(Random& random, double low, double high) {
  for (int64_t offset : reference::Offsets(shape(), strides_.data())) {
    double value = random.In(low, high);
    if (dtype_ == DType::kBool) value = random.Below(2) != 0 ? 1 : 0;
    reference::WriteElement(data(), dtype_, offset, value);
  }
  return *this;
}

Operand& Operand::Set(const Reals& values) {
  const auto offsets = reference::Offsets(shape(), strides_.data());
  EXPECT_EQ(values.size(), offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    reference::WriteElement(data(), dtype_, offsets[i], values[i]);
  }
  return *this;
}

KernelShape Operand::shape() const { return ShapeOf(sizes_); }

KernelInput Operand::in() const {
  KernelInput input = {data(), dtype_};
  std::copy(strides_.begin(), strides_.end(), input.strides);
  return input;
}

KernelOutput Operand::out() {
  KernelOutput output = {data(), dtype_};
  std::copy(strides_.begin(), strides_.end(), output.strides);
  return output;
}

Reals Operand::Read() const { return reference::ReadAll(shape(), in()); }

Reals Operand::ReadRow(int64_t row) const {
  const int64_t start = row * strides_[0] * SizeOf(dtype_);
  return reference::ReadAll({1, {sizes_.back()}},
                            {bytes_.data() + start, dtype_, {1}});
}

int64_t Operand::numel() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1},
                         std::multiplies<>());
}

void SetDevice(const Device* device) {
  CH_CHECK(device_under_test == nullptr) << "a binary tests one device";
  device_under_test = device;
}

void* Device::Allocate(size_t bytes) const { return ::operator new(bytes); }
void Device::Free(void* data) const { ::operator delete(data); }

void* AllocateOnDevice(size_t bytes) { return TheDevice().Allocate(bytes); }
void FreeOnDevice(void* data) { TheDevice().Free(data); }

const KernelTable& Kernels() { return TheDevice().kernels(); }
KernelContext& Context() { return TheDevice().ContextOf(0); }

void Run(absl::FunctionRef<void(KernelContext&)> kernel) {
  kernel(TheDevice().ContextOf(0));
  TheDevice().Check(0);
}

void RunAllWays(const std::vector<Operand*>& outputs,
                absl::FunctionRef<void(KernelContext&)> kernel,
                const std::string& what) {
  std::vector<Bytes> initial;
  for (const Operand* output : outputs) initial.push_back(output->bytes());
  Run(kernel);
  std::vector<Bytes> first;
  for (size_t i = 0; i < outputs.size(); ++i) {
    first.push_back(outputs[i]->bytes());
    const Bytes expected = WithElementsOf(*outputs[i], initial[i]);
    EXPECT_TRUE(expected == first[i])
        << what << ": output " << i << " was written outside of its elements";
  }
  for (int way = 1; way < TheDevice().ways(); ++way) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i]->set_bytes(initial[i]);
    }
    kernel(TheDevice().ContextOf(way));
    TheDevice().Check(way);
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i]->bytes(), first[i])
          << what << ": output " << i << " is another when run in way " << way;
    }
  }
}

void ExpectWithin(const Reals& actual, const Reals& expected,
                  const Reals& bounds, DType dtype, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ASSERT_EQ(actual.size(), bounds.size()) << what;
  // The limit beyond which rounding overflows.
  Real max_finite = std::numeric_limits<double>::max();
  if (dtype == DType::kFloat32) max_finite = std::numeric_limits<float>::max();
  if (dtype == DType::kBFloat16) max_finite = std::ldexp(Real(255), 120);
  if (dtype == DType::kFloat16) max_finite = 65504;
  const Real u = reference::UnitRoundoff(dtype);

  size_t worst = 0;
  Real worst_excess = -1;
  Real worst_bound = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const Real bound = bounds[i] * (1 + u) + u * std::abs(expected[i]) +
                       reference::Smallest(dtype);
    Real excess;
    if (std::isnan(expected[i]) || std::isnan(actual[i])) {
      excess = std::isnan(expected[i]) == std::isnan(actual[i])
                   ? Real(0)
                   : std::numeric_limits<Real>::infinity();
    } else if (actual[i] == expected[i]) {
      excess = 0;
    } else if (std::isinf(actual[i]) &&
               std::abs(expected[i]) * (1 + 4 * u) >= max_finite &&
               std::signbit(actual[i]) == std::signbit(expected[i])) {
      excess = 0;
    } else {
      const Real error = std::abs(actual[i] - expected[i]);
      excess =
          bound > 0 ? error / bound : std::numeric_limits<Real>::infinity();
    }
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
      worst_bound = bound;
    }
  }
  EXPECT_LE(worst_excess, 1)
      << what << ": worst element " << worst << " of " << actual.size()
      << ": expected " << expected[worst] << ", actual " << actual[worst]
      << ", bound " << worst_bound;
}

bool AreCasesFew() {
  const char* const cases = std::getenv("CROSSHATCH_KERNEL_CASES");
  if (cases == nullptr) return false;
  CH_CHECK(std::string_view(cases) == "few")
      << "CROSSHATCH_KERNEL_CASES=" << cases << " is not \"few\"";
  return true;
}

DType ComputeDType(DType dtype) {
  return SizeOf(dtype) == 2 ? DType::kFloat32 : dtype;
}

Real Gamma(DType dtype, int64_t n) {
  const Real nu =
      static_cast<Real>(n) * reference::UnitRoundoff(ComputeDType(dtype));
  return nu / (1 - nu);
}

Real SmallestNormal(DType dtype) {
  return dtype == DType::kFloat64 ? Real{std::numeric_limits<double>::min()}
                                  : Real{std::numeric_limits<float>::min()};
}

Workspace::Workspace(int64_t bytes)
    : bytes_(bytes),
      storage_(static_cast<size_t>(bytes + kCanaries + 64), std::byte{0xFF}) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  data_ = storage_.data() + (64 - address % 64);
}

Workspace::~Workspace() {
  const bool intact =
      std::all_of(data_ + bytes_, storage_.data() + storage_.size(),
                  [](std::byte b) { return b == std::byte{0xFF}; });
  EXPECT_TRUE(intact) << "a kernel wrote behind its workspace of " << bytes_
                      << " bytes";
}

}  // namespace crosshatch::kernel_test
