// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COUNTING_CONTROL_PLANE_TESTUTIL_H_
#define CROSSHATCH_COMM_COUNTING_CONTROL_PLANE_TESTUTIL_H_

#include <cstdint>
#include <memory>

#include "crosshatch/comm/control_plane.h"

namespace crosshatch {

/// A control plane that counts what a rank requests of the one behind it.
class CountingControlPlane final : public ControlPlane {
 public:
  struct Counts {
    int groups = 0;
    int exchanges = 0;
    /// Counts of exchanges, in which each member writes to every other one.
    int64_t messages = 0;
    int64_t bytes = 0;
  };

  /// \param inner, counts must outlive this and its groups
  CountingControlPlane(ControlPlane& inner, Counts& counts)
      : inner_(inner), counts_(counts) {}

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(
      const GroupKey& key, int member, absl::Duration timeout) override;
  absl::Duration timeout() const override { return inner_.timeout(); }
  void FailRank(const absl::Status& error) override { inner_.FailRank(error); }

 private:
  ControlPlane& inner_;
  Counts& counts_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_COUNTING_CONTROL_PLANE_TESTUTIL_H_
