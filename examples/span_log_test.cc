// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/span_log.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/event_sink.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

using ::testing::SizeIs;

void Write(SpanLog& log, EventKind kind, const std::string& row,
           const char* what, const std::string& subject) {
  log.Write({.kind = kind, .what = what, .subject = &subject, .where = &row});
}

TEST(SpanLogTest, TakesSpansAndNestsThem) {
  SpanLog log(SpanLog::Clock::now());
  const double before = log.MicrosecondsNow();
  Write(log, EventKind::kSpanBegin, "compute", "forward", "a");
  Write(log, EventKind::kCollective, "compute", "all_gather", "a");
  // In another row, and in the same row with another name.
  Write(log, EventKind::kSpanBegin, "side", "forward", "a");
  Write(log, EventKind::kSpanBegin, "compute", "op", "matmul");
  Write(log, EventKind::kSpanEnd, "compute", "op", "matmul");
  Write(log, EventKind::kSpanEnd, "compute", "forward", "a");
  // An end without a beginning is ignored.
  Write(log, EventKind::kSpanEnd, "compute", "backward", "a");
  ASSERT_THAT(log.spans(), SizeIs(3));
  const Span& outer = log.spans()[0];
  const Span& open = log.spans()[1];
  const Span& inner = log.spans()[2];
  EXPECT_EQ(outer.subject, "a");
  EXPECT_EQ(inner.subject, "matmul");
  EXPECT_LE(before, outer.begin_us);
  EXPECT_LE(outer.begin_us, inner.begin_us);
  EXPECT_LE(inner.begin_us, inner.end_us);
  EXPECT_LE(inner.end_us, outer.end_us);
  EXPECT_EQ(open.row, "side");
  EXPECT_LT(open.end_us, 0);
}

TEST(SpanLogTest, TakesThemFromSeveralThreads) {
  constexpr int kThreads = 4;
  constexpr int kSpans = 200;
  SpanLog log(SpanLog::Clock::now());
  std::vector<std::thread> streams;
  for (int i = 0; i < kThreads; ++i) {
    streams.emplace_back([&log, row = absl::StrCat("stream", i)] {
      for (int k = 0; k < kSpans; ++k) {
        Write(log, EventKind::kSpanBegin, row, "op", "add");
        Write(log, EventKind::kSpanEnd, row, "op", "add");
      }
    });
  }
  for (std::thread& stream : streams) stream.join();
  ASSERT_THAT(log.spans(), SizeIs(kThreads * kSpans));
  std::vector<double> ends(kThreads, 0);
  for (const Span& span : log.spans()) {
    double& end = ends[static_cast<size_t>(span.row.back() - '0')];
    EXPECT_LE(end, span.begin_us);
    EXPECT_LE(span.begin_us, span.end_us);
    end = span.end_us;
  }
}

}  // namespace
}  // namespace crosshatch::examples
