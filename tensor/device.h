// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_DEVICE_H_
#define CROSSHATCH_TENSOR_DEVICE_H_

#include <cstdint>
#include <ostream>

namespace crosshatch {

/// Where a tensor's elements live.
class Device {
 public:
  enum class Kind : uint8_t {
    kCpu,
    kCuda,
    /// Shapes without elements: a tensor whose memory is not there yet, or all
    /// tensors of a dry run (whose allocations are accounted as if real).
    kMeta,
  };

  constexpr Device() = default;
  static constexpr Device Cpu() { return Device(Kind::kCpu, 0); }
  static constexpr Device Cuda(int index) { return Device(Kind::kCuda, index); }
  static constexpr Device Meta() { return Device(Kind::kMeta, 0); }

  constexpr Kind kind() const { return kind_; }
  /// Index among the devices of its kind on this machine.
  constexpr int index() const { return index_; }
  constexpr bool is_meta() const { return kind_ == Kind::kMeta; }
  constexpr bool is_cpu() const { return kind_ == Kind::kCpu; }

  friend constexpr bool operator==(Device, Device) = default;

 private:
  constexpr Device(Kind kind, int index)
      : kind_(kind), index_(static_cast<int16_t>(index)) {}

  Kind kind_ = Kind::kCpu;
  int16_t index_ = 0;
};

/// "cpu", "cuda:1", "meta".
std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_DEVICE_H_
