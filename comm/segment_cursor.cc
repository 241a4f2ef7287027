// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/segment_cursor.h"

#include <algorithm>
#include <cstring>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

/// Adjacent runs count as one.
bool IsContiguous(const Segment& segment) {
  return segment.runs == 1 || segment.stride_elems == segment.run_elems;
}
int64_t RunElems(const Segment& segment) {
  return IsContiguous(segment) ? segment.elems() : segment.run_elems;
}

}  // namespace

SegmentCursor::SegmentCursor(absl::Span<const Segment> segments,
                             int64_t elem_bytes, int64_t begin)
    : segments_(segments), elem_bytes_(elem_bytes) {
  Seek(begin);
}

void SegmentCursor::Advance(int64_t count) {
  if (count < contiguous_) {
    in_run_ += count;
    data_ += count * elem_bytes_;
    contiguous_ -= count;
    return;
  }
  const int64_t run = RunElems(segments_[segment_]);
  Seek(run * run_ + in_run_ + count);
}

EvenRuns CutRuns(const EvenRuns& even, int64_t run) {
  if (even.run_elems == run) return even;
  return {run, even.run_elems / run, run};
}

EvenRuns SegmentCursor::even_runs() const {
  if (contiguous_ == 0) return {};
  const Segment& segment = segments_[segment_];
  if (IsContiguous(segment) || in_run_ > 0) return {contiguous_, 1, 0};
  return {contiguous_, segment.runs - run_, segment.stride_elems};
}

void SegmentCursor::Skip(int64_t count) {
  while (count > 0) {
    const int64_t n = std::min(contiguous_, count);
    CH_CHECK(n > 0) << "a list of segments ends " << count
                    << " elements too early";
    Advance(n);
    count -= n;
  }
}

void SegmentCursor::Seek(int64_t skip) {
  while (segment_ < segments_.size() && skip >= segments_[segment_].elems()) {
    skip -= segments_[segment_].elems();
    ++segment_;
  }
  if (segment_ == segments_.size()) {
    data_ = nullptr;
    contiguous_ = 0;
    return;
  }
  const Segment& segment = segments_[segment_];
  const int64_t run = RunElems(segment);
  run_ = skip / run;
  in_run_ = skip % run;
  data_ = static_cast<std::byte*>(segment.data) +
          (run_ * segment.stride_elems + in_run_) * elem_bytes_;
  contiguous_ = run - in_run_;
}

void CopySegments(SegmentCursor from, SegmentCursor to, int64_t count,
                  int64_t elem_bytes) {
  while (count > 0) {
    const int64_t n = std::min({from.contiguous(), to.contiguous(), count});
    CH_CHECK(n > 0) << "a list of segments ends " << count
                    << " elements too early";
    if (from.data() != to.data()) {
      std::memcpy(to.data(), from.data(), n * elem_bytes);
    }
    from.Advance(n);
    to.Advance(n);
    count -= n;
  }
}

}  // namespace crosshatch
