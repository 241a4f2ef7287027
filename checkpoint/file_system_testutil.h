// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_SYSTEM_TESTUTIL_H_
#define CROSSHATCH_CHECKPOINT_FILE_SYSTEM_TESTUTIL_H_

/// \file
/// FaultyFileSystem: a file system with an injected fault; and functions that
/// read, write and damage files.

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/checkpoint/file_io.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline void FlipLastBit(const std::string& path) {
  std::string bytes = ReadBytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteBytes(path, bytes);
}

/// The fault of one call.
struct DiskFault {
  enum class Kind {
    kNone,
    kFail,  ///< The call fails; the later ones work again.
    kKill,  ///< The process is as if killed: no later call has an effect.
  };
  Kind kind = Kind::kNone;
  int at = 0;  ///< Index of the call, from 0.
  int error = EIO;
};

/// The real file system with a fault. A failing write writes half of its bytes.
/// Flushes are omitted, because no test restarts the machine.
///
/// Rank threads may share one; their calls are then counted together.
class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(DiskFault fault, bool can_exchange = true)
      : fault_(fault), can_exchange_(can_exchange) {}

  std::string failed_call() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failed_call_;
  }
  /// Returns the bytes that complete calls have written.
  int64_t written() const { return written_; }

 private:
  int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
    const absl::string_view name = call.name;
    // The system closes the files of a killed process.
    const bool closes = name == "Close";
    bool fails = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (killed_) return closes ? (make(), EIO) : EIO;
      fails = fault_.kind != DiskFault::Kind::kNone && calls_++ == fault_.at;
      if (fails) {
        failed_call_ = call.name;
        killed_ = fault_.kind == DiskFault::Kind::kKill;
      }
    }
    if (fails) {
      call.bytes /= 2;
      if (closes || call.bytes > 0) make();
      return fault_.error;
    }
    if (name == "Sync" || name == "SyncDirectory") return 0;
    if (!can_exchange_ && (name == "RenameToNew" || name == "Exchange")) {
      return EINVAL;
    }
    const int error = make();
    if (error == 0) written_ += call.bytes;
    return error;
  }

  const DiskFault fault_;
  const bool can_exchange_;
  mutable std::mutex mutex_;
  int calls_ = 0;
  bool killed_ = false;
  std::string failed_call_;
  std::atomic<int64_t> written_{0};
};

/// Calls `save` with a fault of each of its calls, one after another, until no
/// call fails.
/// \param prepare is called before each save.
/// \param save receives the file system; returns its status.
/// \param check receives the file system and the status.
/// \param least_calls that `save` makes at least.
inline void ForEachFault(
    const DiskFault& fault, bool can_exchange, int least_calls,
    absl::FunctionRef<void()> prepare,
    absl::FunctionRef<absl::Status(FileSystem&)> save,
    absl::FunctionRef<void(const FaultyFileSystem&, const absl::Status&)>
        check) {
  for (int at = 0;; ++at) {
    ASSERT_LT(at, 200) << "calls without an end";
    ASSERT_NO_FATAL_FAILURE(prepare());
    FaultyFileSystem files({.kind = fault.kind, .at = at, .error = fault.error},
                           can_exchange);
    const absl::Status status = save(files);
    SCOPED_TRACE(absl::StrCat("call ", at, " ", files.failed_call(), ": ",
                              status.ToString()));
    ASSERT_NO_FATAL_FAILURE(check(files, status));
    if (!files.failed_call().empty()) continue;
    EXPECT_TRUE(status.ok());
    EXPECT_GT(at, least_calls);
    return;
  }
}

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_SYSTEM_TESTUTIL_H_
