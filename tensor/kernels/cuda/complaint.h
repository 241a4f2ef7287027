// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAINT_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAINT_H_

/// \file
/// Complaint: how a kernel reports an invalid argument, such as an index out of
/// range. The first thread that finds one records it in host memory, skips that
/// element and continues. The host checks when it next waits for the stream,
/// and ends the program with the message of the CPU's kernels, in the error
/// context of the kernel. It ignores complaints of a rank that is poisoned by
/// then.

#include <cstdint>
#include <string>
#include <vector>

namespace crosshatch {

class IssuedErrorContext;

namespace internal {

enum class ComplaintKind : int32_t {
  kNone,
  kIndexOfDim,   ///< op; values: index, dim, bound.
  kIndexInList,  ///< op, name, plural; values: index, position, bound.
  kTarget,       ///< values: target, row, cols.
};

struct Complaint {
  /// Not 0 if some thread has taken it and writes the other fields.
  int32_t taken = 0;
  ComplaintKind kind = ComplaintKind::kNone;
  /// The complainer's.
  int64_t issue = 0;
  /// A host pointer, which kernels pass on and do not dereference.
  const char* op = nullptr;
  const char* name = nullptr;
  const char* plural = nullptr;
  int64_t values[3] = {};
};

/// The part of a complaint that a kernel receives as a parameter.
struct Complainer {
  Complaint* complaint = nullptr;
  ComplaintKind kind = ComplaintKind::kNone;
  const char* op = nullptr;
  const char* name = nullptr;
  const char* plural = nullptr;
  /// The number of the kernel among those of the stream that may complain
  /// (ComplainerPlaces).
  int64_t issue = 0;
};

/// The error contexts in which the latest kernels that may complain were issued
/// to one stream.
class ComplainerPlaces {
 public:
  ComplainerPlaces();
  ~ComplainerPlaces();

  /// Records the calling thread's error context for the next such kernel and
  /// returns its number.
  int64_t NoteHere();
  /// Ends the program with the complaint, in the error context of its kernel if
  /// that is still known.
  void End(const Complaint& complaint) const;

 private:
  std::vector<IssuedErrorContext> places_;
  int64_t next_ = 0;
};

/// Returns the message; empty if there is no complaint.
std::string TextOf(const Complaint& complaint);

}  // namespace internal
}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAINT_H_
