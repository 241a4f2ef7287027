// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_FAULT_PLANTER_TESTUTIL_H_
#define CROSSHATCH_TENSOR_FAULT_PLANTER_TESTUTIL_H_

/// \file
/// FaultPlanter: stands around the streams and the memory of a rank, keeps a
/// log of what is issued and, if told so, does one thing wrong.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/tensor/context_decorator.h"
#include "crosshatch/tensor/issue_log_testutil.h"

namespace crosshatch {

/// One mistake. Waits and leases are counted in the order of issue, which is
/// the same in every run.
struct Fault {
  enum class Kind : uint8_t {
    kNone,
    /// Wait `index` is left out.
    kDropWait,
    /// Lease `index` ends where it should, but as if no other stream had used
    /// the memory.
    kForgetUses,
    /// Lease `index` ends as soon as it has begun; its owner goes on using it.
    kReleaseEarly,
    /// Lease `index` is taken from the memory of another stream.
    kWrongStream,
  };
  Kind kind = Kind::kNone;
  int64_t index = 0;
  /// This work begins late, by far more than anything else takes: who does not
  /// wait for it is ahead of it, whatever the seed.
  IssueLog::Work late = {};
};

/// Also a sink: what FSDP logs tells where in the program a wait or lease is.
/// Wants adversarial streams: on an inline one a wait cannot be left out.
///
/// Where ranks are on a device with queues of its own, an engine makes streams
/// wait for those of the peers, which have planters of their own: such waits
/// are neither counted nor left out, for they are the engine's.
/// \threadsafety its rank's thread; after the run anybody.
class FaultPlanter final : public ContextDecorator, public EventSink {
 public:
  explicit FaultPlanter(Fault fault = {}) : fault_(fault) {}

  std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) override;
  std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) override;
  void Write(const LogEvent& event) override;

  const IssueLog& log() const { return log_; }
  /// How often memory was leased that was leased already: what a checker of
  /// leases finds without any luck.
  int64_t overlaps() const { return overlaps_; }

 private:
  class PlantedStream;
  class PlantedAllocator;
  class Point;

  bool Has(Fault::Kind kind, int64_t index) const {
    return fault_.kind == kind && fault_.index == index;
  }

  const Fault fault_;
  IssueLog log_;
  std::vector<PlantedStream*> streams_;
  int64_t points_ = 0;
  int64_t overlaps_ = 0;
  bool leasing_ = false;
  std::string where_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_FAULT_PLANTER_TESTUTIL_H_
