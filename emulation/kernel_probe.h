// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_KERNEL_PROBE_H_
#define CROSSHATCH_EMULATION_KERNEL_PROBE_H_

/// \file
/// KernelProbe: looks on while kernels run, and makes one mistake in them, for
/// tests that expect to find it.

#include <compare>
#include <cstdint>
#include <set>
#include <string>

namespace crosshatch::emulation {

/// A call of __syncthreads.
struct BarrierPlace {
  std::string file;
  int line = 0;
  friend auto operator<=>(const BarrierPlace&, const BarrierPlace&) = default;
};

/// One mistake.
struct KernelFault {
  enum class Kind : uint8_t {
    kNone,
    /// The barrier at `barrier` is left out.
    kNoBarrier,
    /// Store `store` is left out, counted from 0 since the probe is there: the
    /// last one is what a bound that is too small by one leaves out.
    kNoStore,
    /// Store `store` writes its value behind its own place too, as a bound that
    /// is too large by one makes it.
    kOneStoreMore,
  };
  Kind kind = Kind::kNone;
  BarrierPlace barrier = {};
  int64_t store = -1;
};

/// Of the kernels that the calling thread runs while it lives; one at a time.
/// Streams that are neither delayed nor blocked run theirs on the thread that
/// issues.
class KernelProbe {
 public:
  explicit KernelProbe(KernelFault fault = {});
  ~KernelProbe();
  KernelProbe(const KernelProbe&) = delete;
  KernelProbe& operator=(const KernelProbe&) = delete;

  /// Where threads came to a barrier.
  const std::set<BarrierPlace>& barriers() const { return barriers_; }
  int64_t stores() const { return stores_; }

 private:
  friend bool IsBarrierLeftOut(const char* file, int line);
  friend KernelFault::Kind FaultOfStore();

  const KernelFault fault_;
  std::set<BarrierPlace> barriers_;
  int64_t stores_ = 0;
};

extern thread_local constinit KernelProbe* current_probe;

/// \name What kernels ask
/// @{
bool IsBarrierLeftOut(const char* file, int line);
/// What is wrong with the store that is made now.
inline KernelFault::Kind FaultOfStore() {
  if (current_probe == nullptr) return KernelFault::Kind::kNone;
  const int64_t store = current_probe->stores_++;
  return current_probe->fault_.store == store ? current_probe->fault_.kind
                                              : KernelFault::Kind::kNone;
}
/// @}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_KERNEL_PROBE_H_
