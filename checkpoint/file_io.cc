// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/file_io.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::checkpoint {
namespace {

// Linux writes at most 0x7ffff000 bytes at a time.
size_t MostOf(int64_t bytes) {
  return static_cast<size_t>(std::min(bytes, int64_t{1} << 30));
}

// Repeats a call that a signal interrupts.
ssize_t Retried(absl::FunctionRef<ssize_t()> call) {
  ssize_t result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

int ErrorOf(int result) { return result == 0 ? 0 : errno; }

FileInfo::Kind KindOf(uint32_t mode) {
  if (S_ISREG(mode)) return FileInfo::Kind::kFile;
  if (S_ISDIR(mode)) return FileInfo::Kind::kDirectory;
  if (S_ISLNK(mode)) return FileInfo::Kind::kLink;
  return FileInfo::Kind::kOther;
}

}  // namespace

FileSystem& FileSystem::Real() {
  static FileSystem real;
  return real;
}

int FileSystem::Make(SystemCall&, absl::FunctionRef<int()> make) {
  return make();
}

int FileSystem::Examine(const std::string& path, FileInfo& info) {
  SystemCall call{.name = "Examine", .path = path.c_str(), .info = &info};
  return Make(call, [&] {
    info = {};
    struct statx found;
    if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
              STATX_BASIC_STATS, &found) != 0) {
      return errno == ENOENT ? 0 : errno;
    }
    info.kind = KindOf(found.stx_mode);
    // Older kernels do not report it; the rename then fails with EBUSY.
    info.is_mount = (found.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0 &&
                    (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    info.device = makedev(found.stx_dev_major, found.stx_dev_minor);
    info.inode = found.stx_ino;
    info.size = static_cast<int64_t>(found.stx_size);
    info.modified_ns =
        found.stx_mtime.tv_sec * 1'000'000'000 + found.stx_mtime.tv_nsec;
    return 0;
  });
}

int FileSystem::List(const std::string& path, std::vector<std::string>& names) {
  SystemCall call{.name = "List", .path = path.c_str()};
  return Make(call, [&] {
    names.clear();
    DIR* const directory = opendir(path.c_str());
    if (directory == nullptr) return errno;
    int error = 0;
    while (true) {
      errno = 0;
      const dirent* const entry = readdir(directory);
      if (entry == nullptr) {
        error = errno;
        break;
      }
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(directory);
    std::sort(names.begin(), names.end());
    return error;
  });
}

int FileSystem::CheckWritable(const std::string& directory) {
  SystemCall call{.name = "CheckWritable", .path = directory.c_str()};
  return Make(call,
              [&] { return ErrorOf(access(directory.c_str(), W_OK | X_OK)); });
}

int FileSystem::MakeDirectory(const std::string& path) {
  SystemCall call{.name = "MakeDirectory", .path = path.c_str()};
  return Make(call, [&] { return ErrorOf(mkdir(path.c_str(), 0777)); });
}

int FileSystem::RemoveDirectory(const std::string& path) {
  SystemCall call{.name = "RemoveDirectory", .path = path.c_str()};
  return Make(call, [&] { return ErrorOf(rmdir(path.c_str())); });
}

int FileSystem::RemoveFile(const std::string& path) {
  SystemCall call{.name = "RemoveFile", .path = path.c_str()};
  return Make(call, [&] { return ErrorOf(unlink(path.c_str())); });
}

int FileSystem::Rename(const std::string& from, const std::string& to) {
  SystemCall call{.name = "Rename", .path = from.c_str()};
  return Make(call, [&] { return ErrorOf(rename(from.c_str(), to.c_str())); });
}

int FileSystem::RenameToNew(const std::string& from, const std::string& to) {
  SystemCall call{.name = "RenameToNew", .path = from.c_str()};
  return Make(call, [&] {
    return ErrorOf(renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                             RENAME_NOREPLACE));
  });
}

int FileSystem::Exchange(const std::string& a, const std::string& b) {
  SystemCall call{.name = "Exchange", .path = a.c_str()};
  return Make(call, [&] {
    return ErrorOf(
        renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
  });
}

int FileSystem::SyncDirectory(const std::string& path) {
  SystemCall call{.name = "SyncDirectory", .path = path.c_str()};
  return Make(call, [&] {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int error = ErrorOf(fsync(fd));
    // Some file systems cannot flush a directory and return EINVAL.
    if (error == EINVAL) error = 0;
    close(fd);
    return error;
  });
}

int FileSystem::CreateFile(const std::string& path, int& fd) {
  SystemCall call{.name = "CreateFile", .path = path.c_str()};
  return Make(call, [&] {
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? errno : 0;
  });
}

int FileSystem::OpenFile(const std::string& path, int& fd) {
  SystemCall call{.name = "OpenFile", .path = path.c_str()};
  return Make(call, [&] {
    fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    return fd < 0 ? errno : 0;
  });
}

int FileSystem::SetLength(int fd, int64_t bytes) {
  SystemCall call{.name = "SetLength", .fd = fd};
  return Make(call, [&] {
    return ErrorOf(static_cast<int>(
        Retried([&] { return ftruncate(fd, static_cast<off_t>(bytes)); })));
  });
}

int FileSystem::Write(int fd, const void* data, int64_t bytes,
                      int64_t& written) {
  SystemCall call{.name = "Write", .fd = fd, .bytes = bytes};
  return Make(call, [&] {
    written = Retried([&] { return write(fd, data, MostOf(call.bytes)); });
    return written < 0 ? errno : 0;
  });
}

int FileSystem::WriteAt(int fd, int64_t offset, const void* data, int64_t bytes,
                        int64_t& written) {
  SystemCall call{
      .name = "WriteAt", .fd = fd, .offset = offset, .bytes = bytes};
  return Make(call, [&] {
    written = Retried([&] {
      return pwrite(fd, data, MostOf(call.bytes), static_cast<off_t>(offset));
    });
    return written < 0 ? errno : 0;
  });
}

int FileSystem::Sync(int fd) {
  SystemCall call{.name = "Sync", .fd = fd};
  return Make(call, [&] { return ErrorOf(fsync(fd)); });
}

int FileSystem::Close(int fd) {
  SystemCall call{.name = "Close", .fd = fd};
  return Make(call, [&] { return ErrorOf(close(fd)); });
}

DirectoryLock::DirectoryLock(const std::string& path)
    : fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) != 0) error_ = errno;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SystemError(int error, absl::string_view action,
                         const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " ", path));
}

/// A descriptor that is closed by its last user.
struct ReadableFile::Descriptor {
  explicit Descriptor(int open_fd) : fd(open_fd) {}
  ~Descriptor() { close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

/// The files of the process that have a descriptor, most recently read first.
class OpenFiles {
 public:
  using DescriptorPtr = std::shared_ptr<const ReadableFile::Descriptor>;

  static OpenFiles& Get() {
    static auto* const open_files = new OpenFiles;
    return *open_files;
  }
  DescriptorPtr Find(const ReadableFile& file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (file.descriptor_ != nullptr) {
      files_.splice(files_.begin(), files_, places_.at(&file));
    }
    return file.descriptor_;
  }
  void Add(const ReadableFile& file, DescriptorPtr descriptor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Another thread may have opened it in the meantime.
    if (file.descriptor_ == nullptr) {
      files_.push_front(&file);
      places_[&file] = files_.begin();
    }
    file.descriptor_ = std::move(descriptor);
    if (files_.size() > kMaxOpenFiles) Close(*files_.back());
  }
  void Remove(const ReadableFile& file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (file.descriptor_ != nullptr) Close(file);
  }

 private:
  using Files = std::list<const ReadableFile*>;
  /// \pre mutex_ is held
  void Close(const ReadableFile& file) {
    files_.erase(places_.at(&file));
    places_.erase(&file);
    file.descriptor_.reset();
  }

  std::mutex mutex_;
  Files files_;
  absl::flat_hash_map<const ReadableFile*, Files::iterator> places_;
};

absl::StatusOr<std::unique_ptr<const ReadableFile>> ReadableFile::Open(
    const std::string& path) {
  std::unique_ptr<ReadableFile> file(new ReadableFile(path));
  struct stat info;
  CH_ASSIGN_OR_RETURN(std::shared_ptr<const Descriptor> descriptor,
                      file->OpenDescriptor(info));
  file->size_ = static_cast<int64_t>(info.st_size);
  file->device_ = info.st_dev;
  file->inode_ = info.st_ino;
  OpenFiles::Get().Add(*file, std::move(descriptor));
  return file;
}

absl::StatusOr<std::shared_ptr<const ReadableFile::Descriptor>>
ReadableFile::OpenDescriptor(struct stat& info) const {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer. It is refused
  // below.
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "open", path_);
  auto descriptor = std::make_shared<const Descriptor>(fd);
  if (fstat(fd, &info) != 0) return SystemError(errno, "examine", path_);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " is not a regular file"));
  }
  return descriptor;
}

ReadableFile::~ReadableFile() { OpenFiles::Get().Remove(*this); }

absl::Status ReadableFile::Read(int64_t offset, int64_t bytes,
                                void* out) const {
  std::shared_ptr<const Descriptor> descriptor = OpenFiles::Get().Find(*this);
  if (descriptor == nullptr) {
    struct stat info;
    CH_ASSIGN_OR_RETURN(descriptor, OpenDescriptor(info));
    if (info.st_dev != device_ || info.st_ino != inode_) {
      return absl::DataLossError(absl::StrCat(
          path_, " was replaced by another file while it was read"));
    }
    OpenFiles::Get().Add(*this, descriptor);
  }
  auto* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got =
        pread(descriptor->fd, next, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "read", path_);
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, " was truncated while it was read: it had ",
                       size_, " bytes, and byte ", offset, " is gone"));
    }
    next += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<const ReadableFile> file,
                      ReadableFile::Open(path));
  if (file->size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", file->size(),
                                                   " bytes; at most ",
                                                   kMaxTextBytes, " are read"));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  CH_RETURN_IF_ERROR(file->Read(0, file->size(), text.data()));
  return text;
}

int TakeFreeName(const std::string& path, const std::string& suffix,
                 absl::FunctionRef<int(const std::string&)> attempt,
                 std::string& taken) {
  taken = path + suffix;
  for (int number = 2;; ++number) {
    const int error = attempt(taken);
    if (error != EEXIST) return error;
    taken = absl::StrCat(path, suffix, "-", number);
  }
}

bool MatchesDigits(absl::string_view name, absl::string_view pattern) {
  constexpr size_t kDigits = 5;
  for (const char wanted : pattern) {
    if (wanted != '#') {
      if (name.empty() || name[0] != wanted) return false;
      name.remove_prefix(1);
      continue;
    }
    size_t digits = 0;
    while (digits < name.size() &&
           std::isdigit(static_cast<unsigned char>(name[digits])) != 0) {
      ++digits;
    }
    if (digits < kDigits || (digits > kDigits && name[0] == '0')) return false;
    name.remove_prefix(digits);
  }
  return name.empty();
}

std::optional<std::string> WithoutFreeSuffix(const std::string& name,
                                             const std::string& suffix) {
  const size_t at = name.rfind(suffix);
  if (at == std::string::npos) return std::nullopt;
  absl::string_view number = absl::string_view(name).substr(at + suffix.size());
  int parsed = 0;
  if (!number.empty() && !(absl::ConsumePrefix(&number, "-") &&
                           absl::SimpleAtoi(number, &parsed))) {
    return std::nullopt;
  }
  return name.substr(0, at);
}

absl::Status WriteFile(const std::string& path, const std::string& text,
                       FileSystem& files, bool keeps) {
  int fd = -1;
  std::string saving;
  if (const int error = TakeFreeName(
          path, ".saving",
          [&](const std::string& name) { return files.CreateFile(name, fd); },
          saving);
      error != 0) {
    return SystemError(error, "create", saving);
  }
  const char* next = text.data();
  auto bytes = static_cast<int64_t>(text.size());
  while (bytes > 0) {
    int64_t written = 0;
    if (const int error = files.Write(fd, next, bytes, written); error != 0) {
      files.Close(fd);
      files.RemoveFile(saving);
      return SystemError(error, "write to", saving);
    }
    next += written;
    bytes -= written;
  }
  const char* action = "flush";
  int error = files.Sync(fd);
  if (const int closed = files.Close(fd); error == 0 && closed != 0) {
    action = "close";
    error = closed;
  }
  if (error == 0) {
    action = "rename the new file to";
    error = files.Rename(saving, path);
  }
  if (error != 0 && !keeps) {
    files.RemoveFile(saving);
    return SystemError(error, action, path);
  }
  if (error != 0) {
    return absl::ErrnoToStatus(error,
                               absl::StrCat("cannot ", action, " ", path,
                                            ", which was written to ", saving));
  }
  const std::string parent = ParentOf(path);
  if (const int failed = files.SyncDirectory(parent); failed != 0) {
    return absl::ErrnoToStatus(
        failed, absl::StrCat(path, " is written, but cannot flush ", parent));
  }
  return absl::OkStatus();
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace crosshatch::checkpoint
