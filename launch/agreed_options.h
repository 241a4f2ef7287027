// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_AGREED_OPTIONS_H_
#define CROSSHATCH_LAUNCH_AGREED_OPTIONS_H_

/// \file
/// What all processes of a job must be started with alike: ways of moving data,
/// which peers would not understand, and what the program says
/// (RunOptions::agreed), with which they would train different things.

#include <string>

#include "absl/status/status.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// What `options` have of that, as a text to be compared.
std::string AgreedText(const RunOptions& options);

/// \param mine of this process, and `of_first` of rank 0's: AgreedText.
/// \error kInvalidArgument naming each option that differs, here and there.
absl::Status CheckAgreed(const std::string& mine, const std::string& of_first);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_AGREED_OPTIONS_H_
