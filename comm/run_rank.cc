// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/run_rank.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/adversarial_delays.h"

namespace crosshatch {
namespace {

/// Calls `fn`. An exception that left the rank's thread would end the process,
/// and the errors of the other ranks would be lost.
absl::Status CallRank(World& world,
                      absl::FunctionRef<absl::Status(World&)> fn) {
  try {
    return fn(world);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "the rank's function ran out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat("the rank's function threw: ", error.what()));
  } catch (...) {
    return absl::InternalError(
        "the rank's function threw what is no std::exception");
  }
}

}  // namespace

absl::Status CheckRun(absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a timeout must be positive, not ", absl::FormatDuration(timeout)));
  }
  return AdversarialSeedOfEnvironment().status();
}

absl::Status RunRank(World& world, absl::FunctionRef<absl::Status(World&)> fn) {
  const absl::Status result = CallRank(world, fn);
  if (!result.ok()) world.Abort(result);
  const absl::Status drained = world.context().Synchronize();
  if (!result.ok()) return result;
  if (!drained.ok()) world.Abort(drained);
  return drained;
}

}  // namespace crosshatch
