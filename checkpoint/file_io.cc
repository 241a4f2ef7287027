// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_system.h"

namespace crosshatch::checkpoint {

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

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(
    std::string path, FileSystem& files) {
  int fd = -1;
  std::string saving;
  const int error = TakeFreeName(
      path, ".saving",
      [&](const std::string& name) { return files.CreateFile(name, fd); },
      saving);
  if (error != 0) return SystemError(error, "create", saving);
  return std::unique_ptr<AtomicFile>(
      new AtomicFile(files, std::move(path), std::move(saving), fd));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) files_.Close(fd_);
  if (!complete_) files_.RemoveFile(saving_);
}

absl::Status AtomicFile::Append(const void* data, int64_t bytes) {
  auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    int64_t written = 0;
    const int error = files_.Write(fd_, next, bytes, written);
    if (error != 0) return SystemError(error, "write to", saving_);
    next += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit(bool keeps) {
  complete_ = keeps;
  const auto failed = [&](int error, const char* action) {
    if (!keeps) return SystemError(error, action, path_);
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot ", action, " ", path_,
                            ", which was written to ", saving_));
  };
  if (const int error = files_.Sync(fd_); error != 0) {
    return failed(error, "flush");
  }
  const int fd = std::exchange(fd_, -1);
  if (const int error = files_.Close(fd); error != 0) {
    return failed(error, "close");
  }
  if (const int error = files_.Rename(saving_, path_); error != 0) {
    return failed(error, "rename the new file to");
  }
  complete_ = true;
  const std::string parent = ParentOf(path_);
  if (const int error = files_.SyncDirectory(parent); error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat(path_, " is written, but cannot flush ", parent));
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const std::string& text,
                       FileSystem& files, bool keeps) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file,
                      AtomicFile::Create(path, files));
  CH_RETURN_IF_ERROR(
      file->Append(text.data(), static_cast<int64_t>(text.size())));
  return file->Commit(keeps);
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace crosshatch::checkpoint
