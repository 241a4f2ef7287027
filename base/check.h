// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_CHECK_H_
#define CROSSHATCH_BASE_CHECK_H_

/// \file
/// Checks of invariants. A failed check is a bug of the program, never of its
/// input. It prints file, line, expression, the streamed message and the error
/// context of the thread (error_context.h) to stderr and aborts. If several
/// threads fail, one of them prints. What depends on the outside returns
/// absl::Status.
///
/// Debian 12's Abseil has no absl/log, hence these few lines.

#include <sstream>

namespace crosshatch::internal {

/// Collects the message of a failed check and aborts when destroyed.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* expression);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();

  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

/// Gives both arms of the conditional in CH_CHECK the type void.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace crosshatch::internal

/// Aborts with a message unless `condition` holds. Always on.
#define CH_CHECK(condition)                                          \
  __builtin_expect(static_cast<bool>(condition), 1)                  \
      ? static_cast<void>(0)                                         \
      : ::crosshatch::internal::Voidify() &                          \
            ::crosshatch::internal::CheckFailure(__FILE__, __LINE__, \
                                                 #condition)         \
                .stream()

#define CH_INTERNAL_CHECK_OP(a, op, b) \
  CH_CHECK((a)op(b)) << "(" << (a) << " vs " << (b) << ") "

/// Comparisons that print both values. Arguments are evaluated again for the
/// message when the check fails, so they must be free of side effects.
#define CH_CHECK_EQ(a, b) CH_INTERNAL_CHECK_OP(a, ==, b)
#define CH_CHECK_NE(a, b) CH_INTERNAL_CHECK_OP(a, !=, b)
#define CH_CHECK_LT(a, b) CH_INTERNAL_CHECK_OP(a, <, b)
#define CH_CHECK_LE(a, b) CH_INTERNAL_CHECK_OP(a, <=, b)
#define CH_CHECK_GT(a, b) CH_INTERNAL_CHECK_OP(a, >, b)
#define CH_CHECK_GE(a, b) CH_INTERNAL_CHECK_OP(a, >=, b)

/// Aborts with the status' message unless `status` is OK.
#define CH_CHECK_OK(status)                                            \
  for (const auto& ch_check_status = (status); !ch_check_status.ok();) \
  CH_CHECK(ch_check_status.ok()) << ch_check_status.ToString()

#endif  // CROSSHATCH_BASE_CHECK_H_
