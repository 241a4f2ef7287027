// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_STEP_TIMELINE_H_
#define CROSSHATCH_EXAMPLES_PAGE_STEP_TIMELINE_H_

/// \file
/// Draws a step's spans, and the table of the times that it spends.

#include <string>

#include "crosshatch/examples/page/step_trace.h"

namespace crosshatch::examples {

/// Returns a drawing with a lane per stream, with nested spans; "" without
/// spans.
std::string StepTimeline(const TracedStep& step);

/// Returns a table of TimesOf; "" without spans.
std::string TimeTable(const TracedStep& step);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_STEP_TIMELINE_H_
