// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_SEGMENT_CURSOR_H_
#define CROSSHATCH_COMM_SEGMENT_CURSOR_H_

/// \file
/// Iteration over lists of segments, for engines.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "crosshatch/comm/collective.h"

namespace crosshatch {

struct EvenRuns {
  int64_t run_elems = 0;
  int64_t runs = 0;
  int64_t stride_elems = 0;
};

/// Returns the same elements, or the first of them, as runs of `run` elements,
/// which is at most `even.run_elems`.
EvenRuns CutRuns(const EvenRuns& even, int64_t run);

/// A position in a list of segments, seen as one sequence of elements.
class SegmentCursor {
 public:
  /// \param segments outlive the cursor.
  /// \param begin the index of the first element, at most their number.
  SegmentCursor(absl::Span<const Segment> segments, int64_t elem_bytes,
                int64_t begin = 0);

  /// Returns the address of the element at the cursor.
  std::byte* data() const { return data_; }
  /// Returns the number of contiguous elements from here; 0 at the end.
  int64_t contiguous() const { return contiguous_; }
  /// Returns the runs of one length and stride from here; the first run is
  /// contiguous().
  EvenRuns even_runs() const;
  /// Advances by `count`, which is at most contiguous().
  void Advance(int64_t count);
  /// Advances by `count`, which is at most the number of remaining elements.
  void Skip(int64_t count);

 private:
  /// Moves to element `skip`, counted from the start of the current segment.
  void Seek(int64_t skip);

  const absl::Span<const Segment> segments_;
  const int64_t elem_bytes_;
  size_t segment_ = 0;
  int64_t run_ = 0;
  int64_t in_run_ = 0;
  std::byte* data_ = nullptr;
  int64_t contiguous_ = 0;
};

/// Copies `count` elements, except those that are in the same memory on both
/// sides.
void CopySegments(SegmentCursor from, SegmentCursor to, int64_t count,
                  int64_t elem_bytes);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_SEGMENT_CURSOR_H_
