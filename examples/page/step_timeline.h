// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_STEP_TIMELINE_H_
#define CROSSHATCH_EXAMPLES_PAGE_STEP_TIMELINE_H_

/// \file
/// The drawing of a step's spans, and the table of what it spends.

#include <string>

#include "crosshatch/examples/page/step_trace.h"

namespace crosshatch::examples {

/// A lane for each stream, and in it what nests in what; "" without spans.
std::string StepTimeline(const TracedStep& step);

/// A table of TimesOf; "" without spans.
std::string TimeTable(const TracedStep& step);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_STEP_TIMELINE_H_
