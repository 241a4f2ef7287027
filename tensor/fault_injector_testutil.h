// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_FAULT_INJECTOR_TESTUTIL_H_
#define CROSSHATCH_TENSOR_FAULT_INJECTOR_TESTUTIL_H_

/// \file
/// FaultInjector: wraps the streams and the memory of a rank, logs what is
/// issued, and injects one fault if requested.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/tensor/context_decorator.h"
#include "crosshatch/tensor/issue_log_testutil.h"

namespace crosshatch {

/// One fault. Waits and leases are counted in the order of issue, which is the
/// same in every run.
struct Fault {
  enum class Kind : uint8_t {
    kNone,
    /// Wait `index` is omitted.
    kDropWait,
    /// Lease `index` ends at its normal point, but as if no other stream had
    /// used the memory.
    kForgetUses,
    /// Lease `index` ends as soon as it has begun; its owner continues to use
    /// it.
    kReleaseEarly,
    /// Lease `index` is taken from the memory of another stream.
    kWrongStream,
  };
  Kind kind = Kind::kNone;
  int64_t index = 0;
  /// This work begins much later than everything else: any stream that does not
  /// wait for it runs ahead, whatever the seed.
  IssueLog::Work late = {};
};

/// Also an event sink, because FSDP's events locate a wait or a lease in the
/// program. Requires adversarial streams: on an inline stream a wait cannot be
/// omitted.
///
/// If ranks are on a device with queues of its own, an engine makes streams
/// wait for those of the peers, which have injectors of their own. Such waits
/// belong to the engine and are neither counted nor omitted.
/// \threadsafety The rank's thread; after the run any thread.
class FaultInjector final : public ContextDecorator, public EventSink {
 public:
  explicit FaultInjector(Fault fault = {}) : fault_(fault) {}

  std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) override;
  std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) override;
  void Write(const LogEvent& event) override;

  const IssueLog& log() const { return log_; }
  /// Returns how often leased memory was leased again, which a checker of
  /// leases always finds.
  int64_t overlaps() const { return overlaps_; }

 private:
  class FaultyStream;
  class FaultyAllocator;
  class Point;

  bool Has(Fault::Kind kind, int64_t index) const {
    return fault_.kind == kind && fault_.index == index;
  }

  const Fault fault_;
  IssueLog log_;
  std::vector<FaultyStream*> streams_;
  int64_t points_ = 0;
  int64_t overlaps_ = 0;
  bool leasing_ = false;
  std::string where_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_FAULT_INJECTOR_TESTUTIL_H_
