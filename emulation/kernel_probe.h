// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_KERNEL_PROBE_H_
#define CROSSHATCH_EMULATION_KERNEL_PROBE_H_

/// \file
/// KernelProbe: looks on while kernels run, and makes one mistake in them, for
/// tests that expect to find it.

#include <compare>
#include <cstdint>
#include <map>
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
    /// Store `number` is left out: the last one is what a bound that is too
    /// small by one leaves out.
    kNoStore,
    /// Store `number` writes its value behind its own place too, as a bound
    /// that is too large by one makes it.
    kOneStoreMore,
    /// Load `number` gives zeros: the last one is what a bound that is too
    /// small by one does not see.
    kNoLoad,
  };
  Kind kind = Kind::kNone;
  BarrierPlace barrier = {};
  /// Of a store, or of a load, counted from 0 since the probe is there.
  int64_t number = -1;
};

/// The last load and the last store of a kernel, numbered as in KernelFault;
/// -1: it made none.
struct LastAccesses {
  int64_t load = -1;
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
  /// Which kernels ran, by their names, and the last accesses of the latest run
  /// of each that had some.
  const std::map<std::string, LastAccesses>& kernels() const {
    return kernels_;
  }

 private:
  friend bool IsBarrierLeftOut(const char* file, int line);
  friend KernelFault::Kind FaultOfStore();
  friend bool IsLoadLeftOut();
  friend void NoteKernel(const char* kernel);

  const KernelFault fault_;
  std::set<BarrierPlace> barriers_;
  std::map<std::string, LastAccesses> kernels_;
  int64_t loads_ = 0;
  int64_t stores_ = 0;
  // At the end of the kernel before.
  LastAccesses before_;
};

extern thread_local constinit KernelProbe* current_probe;

/// \name What kernels ask
/// @{
bool IsBarrierLeftOut(const char* file, int line);
/// What is wrong with the store that is made now.
inline KernelFault::Kind FaultOfStore() {
  if (current_probe == nullptr) return KernelFault::Kind::kNone;
  const int64_t store = current_probe->stores_++;
  const KernelFault& fault = current_probe->fault_;
  const bool is_of_store = fault.kind == KernelFault::Kind::kNoStore ||
                           fault.kind == KernelFault::Kind::kOneStoreMore;
  return is_of_store && fault.number == store ? fault.kind
                                              : KernelFault::Kind::kNone;
}
inline bool IsLoadLeftOut() {
  if (current_probe == nullptr) return false;
  const int64_t load = current_probe->loads_++;
  const KernelFault& fault = current_probe->fault_;
  return fault.kind == KernelFault::Kind::kNoLoad && fault.number == load;
}
/// A kernel has ended.
void NoteKernel(const char* kernel);
/// @}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_KERNEL_PROBE_H_
