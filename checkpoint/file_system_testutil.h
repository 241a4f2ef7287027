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

  int Examine(const std::string& path, FileInfo& info) override {
    return Do("Examine", [&] { return Real().Examine(path, info); });
  }
  int List(const std::string& path, std::vector<std::string>& names) override {
    return Do("List", [&] { return Real().List(path, names); });
  }
  int CheckWritable(const std::string& directory) override {
    return Do("CheckWritable", [&] { return Real().CheckWritable(directory); });
  }
  int MakeDirectory(const std::string& path) override {
    return Do("MakeDirectory", [&] { return Real().MakeDirectory(path); });
  }
  int RemoveDirectory(const std::string& path) override {
    return Do("RemoveDirectory", [&] { return Real().RemoveDirectory(path); });
  }
  int RemoveFile(const std::string& path) override {
    return Do("RemoveFile", [&] { return Real().RemoveFile(path); });
  }
  int Rename(const std::string& from, const std::string& to) override {
    return Do("Rename", [&] { return Real().Rename(from, to); });
  }
  int RenameToNew(const std::string& from, const std::string& to) override {
    return Do("RenameToNew", [&] {
      return can_exchange_ ? Real().RenameToNew(from, to) : EINVAL;
    });
  }
  int Exchange(const std::string& a, const std::string& b) override {
    return Do("Exchange",
              [&] { return can_exchange_ ? Real().Exchange(a, b) : EINVAL; });
  }
  int SyncDirectory(const std::string&) override {
    return Do("SyncDirectory", [] { return 0; });
  }
  int CreateFile(const std::string& path, int& fd) override {
    return Do("CreateFile", [&] { return Real().CreateFile(path, fd); });
  }
  int OpenFile(const std::string& path, int& fd) override {
    return Do("OpenFile", [&] { return Real().OpenFile(path, fd); });
  }
  int SetLength(int fd, int64_t bytes) override {
    return Do("SetLength", [&] { return Real().SetLength(fd, bytes); });
  }
  int Write(int fd, const void* data, int64_t bytes,
            int64_t& written) override {
    return DoWrite("Write", bytes, [&](int64_t some) {
      return Real().Write(fd, data, some, written);
    });
  }
  int WriteAt(int fd, int64_t offset, const void* data, int64_t bytes,
              int64_t& written) override {
    return DoWrite("WriteAt", bytes, [&](int64_t some) {
      return Real().WriteAt(fd, offset, data, some, written);
    });
  }
  int Sync(int) override {
    return Do("Sync", [] { return 0; });
  }
  int Close(int fd) override {
    // The system closes the files of a killed process.
    Real().Close(fd);
    return Do("Close", [] { return 0; });
  }

 private:
  /// \param write writes a prefix of the bytes.
  int DoWrite(const char* name, int64_t bytes,
              absl::FunctionRef<int(int64_t)> write) {
    bool was_killed = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      was_killed = killed_;
    }
    const int error = Do(name, [&] {
      const int result = write(bytes);
      if (result == 0) written_ += bytes;
      return result;
    });
    if (error != 0 && !was_killed) write(bytes / 2);
    return error;
  }

  int Do(const char* name, absl::FunctionRef<int()> call) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (killed_) return EIO;
      if (fault_.kind != DiskFault::Kind::kNone && calls_++ == fault_.at) {
        failed_call_ = name;
        killed_ = fault_.kind == DiskFault::Kind::kKill;
        return fault_.error;
      }
    }
    return call();
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
