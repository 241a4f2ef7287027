// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_COMBINED_STATE_H_
#define CROSSHATCH_NN_COMBINED_STATE_H_

/// \file
/// The state of a whole run: that of its parts, each under its name.
///
///     ch::nn::ModuleState parameters(model);
///     ch::nn::BoundValues position({{"step", &step}});
///     ch::nn::CombinedState run({{"model", &parameters},
///                                {"optimizer", &optimizer},
///                                {"position", &position}});

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

/// Entries are "<part>.<entry>". A part whose name is not among those that were
/// kept is asked all the same, with no names: whether that is an error it knows
/// best.
class CombinedState final : public Stateful {
 public:
  using Parts = std::vector<std::pair<std::string, Stateful*>>;

  /// \param parts outlive this. Names are different, not empty and without
  ///     dots (checked).
  /// \param options allow_unexpected: parts that were kept and are unknown here
  ///     are not read. allow_missing: parts of which nothing was kept stay as
  ///     they are. differences: the names of those parts; what differs within a
  ///     part is for that part's options.
  explicit CombinedState(Parts parts, const RestoreOptions& options = {});

  absl::StatusOr<StateDict> State() override;
  /// \error what the parts say, all of it in one.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  /// In the order of the parts. A part's error ends it: those before it are
  /// restored then, and the run is not to go on.
  absl::Status Restore(const StateDict& state) override;

 private:
  const Parts parts_;
  const RestoreOptions options_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_COMBINED_STATE_H_
