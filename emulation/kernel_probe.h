// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_KERNEL_PROBE_H_
#define CROSSHATCH_EMULATION_KERNEL_PROBE_H_

/// \file
/// Observes kernels, and injects one fault into them, for tests that must
/// detect it.

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

/// A fault to inject.
struct KernelFault {
  enum class Kind : uint8_t {
    kNone,
    /// Skips the barrier at `barrier`.
    kNoBarrier,
    /// Skips store `number`. Skipping the last one is like a bound that is too
    /// small by one.
    kNoStore,
    /// Repeats store `number` at the next address, as a bound that is too large
    /// by one would.
    kOneStoreMore,
    /// Makes load `number` return zeros. For the last one, that is like a bound
    /// that is too small by one.
    kNoLoad,
  };
  Kind kind = Kind::kNone;
  BarrierPlace barrier = {};
  /// The index of a store or a load, counted since the probe exists.
  int64_t number = -1;
};

/// The last load and the last store of a kernel, counted as in KernelFault; -1
/// for none.
struct LastAccesses {
  int64_t load = -1;
  int64_t store = -1;
};

/// Observes kernels that the calling thread runs during its lifetime. Only one
/// may exist. Streams that are neither delayed nor blocked run kernels on the
/// issuing thread.
class KernelProbe {
 public:
  explicit KernelProbe(KernelFault fault = {});
  ~KernelProbe();
  KernelProbe(const KernelProbe&) = delete;
  KernelProbe& operator=(const KernelProbe&) = delete;

  /// Returns the barriers that threads executed.
  const std::set<BarrierPlace>& barriers() const { return barriers_; }
  /// Returns the kernels that ran, by name, with the last accesses of the
  /// latest run that had any.
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
  // The state at the end of the previous kernel.
  LastAccesses before_;
};

extern thread_local constinit KernelProbe* current_probe;

/// \name Queries of kernels
/// @{
bool IsBarrierLeftOut(const char* file, int line);
/// Returns the fault of the current store.
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
/// Records the end of a kernel.
void NoteKernel(const char* kernel);
/// @}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_KERNEL_PROBE_H_
