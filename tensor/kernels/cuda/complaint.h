// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAINT_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAINT_H_

/// \file
/// How a kernel says what is wrong with the numbers it was given, such as an
/// index out of range: the first thread that finds something writes it down in
/// memory of the host, leaves that element alone and goes on. The host looks
/// when it next waits for the stream, and ends the program with the message
/// that the kernels of the CPU give, at the place where the kernel was issued;
/// of a rank that is poisoned by then it looks away.

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
  /// Not 0: some thread has taken it, and writes what follows.
  int32_t taken = 0;
  ComplaintKind kind = ComplaintKind::kNone;
  /// The complainer's.
  int64_t issue = 0;
  /// Of the host's, which kernels hand on and do not follow.
  const char* op = nullptr;
  const char* name = nullptr;
  const char* plural = nullptr;
  int64_t values[3] = {};
};

/// What a kernel hands on to the complaint that it may have.
struct Complainer {
  Complaint* complaint = nullptr;
  ComplaintKind kind = ComplaintKind::kNone;
  const char* op = nullptr;
  const char* name = nullptr;
  const char* plural = nullptr;
  /// Which of the stream's kernels that may complain it is (ComplainerPlaces).
  int64_t issue = 0;
};

/// Where the latest kernels that may complain were issued to one stream.
class ComplainerPlaces {
 public:
  ComplainerPlaces();
  ~ComplainerPlaces();

  /// The calling thread's place is that of the next such kernel; returns its
  /// number.
  int64_t NoteHere();
  /// Ends the program with the complaint, at the place of its kernel if that is
  /// still known.
  void End(const Complaint& complaint) const;

 private:
  std::vector<IssuedErrorContext> places_;
  int64_t next_ = 0;
};

/// The message; empty where there is no complaint.
std::string TextOf(const Complaint& complaint);

}  // namespace internal
}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAINT_H_
