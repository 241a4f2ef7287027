// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_KERNEL_PROBE_H_
#define CROSSHATCH_EMULATION_KERNEL_PROBE_H_

/// \file
/// Observes kernels, and injects one fault into them, for tests that must
/// detect it.

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace crosshatch::emulation {

/// A call of __syncthreads, or a wait for asynchronous copies.
struct BarrierPlace {
  std::string file;
  int line = 0;
  friend auto operator<=>(const BarrierPlace&, const BarrierPlace&) = default;
};

/// What one compiled kernel accesses by instructions of one size: vectors,
/// scalars, ends of rows.
struct KernelPath {
  /// The address of its code.
  uintptr_t kernel = 0;
  bool is_store = false;
  size_t bytes = 0;
  friend auto operator<=>(const KernelPath&, const KernelPath&) = default;
};

/// A fault to inject.
struct KernelFault {
  enum class Kind : uint8_t {
    kNone,
    /// Skips the barrier or the wait at `barrier`.
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
    /// Flips a bit of all that `path` loads or stores.
    kWrongBits,
  };
  Kind kind = Kind::kNone;
  BarrierPlace barrier = {};
  /// The index of a store or a load, counted since the probe exists.
  int64_t number = -1;
  KernelPath path = {};
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
  /// Returns the paths that ran.
  std::set<KernelPath> paths() const;

 private:
  friend bool IsBarrierLeftOut(const char* file, int line);
  friend KernelFault::Kind FaultOfAccess(bool is_store, size_t bytes);
  friend void BeginKernel(const void* code);
  friend void NoteKernel(const char* kernel);

  const KernelFault fault_;
  uintptr_t kernel_ = 0;
  // By the kernel's address: bit 5 * is_store + log2(bytes) of its accesses.
  std::map<uintptr_t, uint32_t> accesses_;
  uint32_t* accesses_of_kernel_ = &accesses_[0];
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
/// Returns the fault of the current access.
inline KernelFault::Kind FaultOfAccess(bool is_store, size_t bytes) {
  using Kind = KernelFault::Kind;
  if (current_probe == nullptr) return Kind::kNone;
  KernelProbe& probe = *current_probe;
  const KernelFault& fault = probe.fault_;
  const int64_t number = is_store ? probe.stores_++ : probe.loads_++;
  *probe.accesses_of_kernel_ |=
      1u << (std::countr_zero(bytes) + (is_store ? 5 : 0));
  if (fault.kind == Kind::kWrongBits) {
    const KernelPath path = {probe.kernel_, is_store, bytes};
    return path == fault.path ? fault.kind : Kind::kNone;
  }
  const bool is_of_store =
      fault.kind == Kind::kNoStore || fault.kind == Kind::kOneStoreMore;
  const bool is_of_access =
      is_store ? is_of_store : fault.kind == Kind::kNoLoad;
  return is_of_access && fault.number == number ? fault.kind : Kind::kNone;
}
/// Records the start of a kernel.
void BeginKernel(const void* code);
/// Records the end of a kernel.
void NoteKernel(const char* kernel);
/// @}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_KERNEL_PROBE_H_
