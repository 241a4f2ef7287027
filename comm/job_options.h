// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_JOB_OPTIONS_H_
#define CROSSHATCH_COMM_JOB_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "crosshatch/base/event_sink.h"

namespace crosshatch {

class ContextDecorator;
class DeviceBackend;

namespace internal {

/// Options that only Crosshatch's own tests set.
struct TestOptions {
  /// Not 0: adversarial streams (tensor/stream.h).
  uint64_t adversarial_seed = 0;
  /// Decorators of the ranks' streams and memory
  /// (tensor/context_decorator.h), by rank; empty, or entries may be null.
  /// Outlive the run.
  std::vector<ContextDecorator*> decorators = {};
  /// The largest message between processes; larger data are sent in several.
  /// The same on every rank.
  int64_t max_message_bytes = int64_t{1} << 30;
};

}  // namespace internal

/// The options that jobs have on every engine.
struct JobOptions {
  /// Threads of each rank's intra-op pool; 0: the machine's cores divided by
  /// the job's ranks on it, at least 1.
  int threads_per_rank = 0;
  /// The longest time that a rank may keep the others waiting at a collective
  /// (an axis may have its own: DeviceMesh::SetTimeout); after it the job
  /// fails. A rank that does not return within the same time, and at least 5 s,
  /// after a failure ends its process, with a message that names it: an endless
  /// loop cannot be interrupted.
  absl::Duration timeout = absl::Minutes(10);
  /// Devices of one kind (tensor/device_backend.h): rank r computes on
  /// backends[r % backends.size()]. Empty, or null entries: the CPU. Rank
  /// threads need memory that the host can address or that all ranks' kernels
  /// can reach (DeviceBackend::ReachPeer). Outlive the run.
  std::vector<const DeviceBackend*> backends = {};
  /// Receivers of the ranks' events, by rank; empty, or entries may be null.
  /// Outlive the run.
  std::vector<EventSink*> sinks = {};
  internal::TestOptions test = {};

  /// \name The part of one rank
  /// @{
  const DeviceBackend* backend(int rank) const {
    return backends.empty()
               ? nullptr
               : backends[static_cast<size_t>(rank) % backends.size()];
  }
  EventSink* sink(int rank) const { return OfRank(sinks, rank); }
  ContextDecorator* decorator(int rank) const {
    return OfRank(test.decorators, rank);
  }
  /// @}

 private:
  template <typename T>
  static T* OfRank(const std::vector<T*>& by_rank, int rank) {
    const auto index = static_cast<size_t>(rank);
    return index < by_rank.size() ? by_rank[index] : nullptr;
  }
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_JOB_OPTIONS_H_
