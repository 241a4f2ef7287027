// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STORAGE_H_
#define CROSSHATCH_TENSOR_STORAGE_H_

/// \file
/// Storage: the memory of one or more tensors.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"

namespace crosshatch {

/// Bytes that tensors view. The memory is a Block that can be attached and
/// detached. An unsharded FSDP parameter is one Tensor for life, whose storage
/// has memory only while it is unsharded; views and tensors saved for backward
/// share that storage. Using a detached storage fails a check that names its
/// owner.
class Storage {
 public:
  /// Creates storage with memory.
  explicit Storage(Block&& block, Device device);
  /// Creates storage of `bytes` without memory, on Device::Meta() until memory
  /// is attached.
  /// \param owner names it in errors, e.g. "layers.0.wq.weight".
  Storage(int64_t bytes, std::string owner);
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool attached() const { return attached_; }
  const std::string& owner() const { return owner_; }
  /// A named range of bytes, from `begin_bytes` to the next part.
  struct Part {
    int64_t begin_bytes;
    std::string name;
  };
  /// Names ranges of the bytes in ascending order, e.g. a group's parameters.
  void set_parts(std::vector<Part> parts) { parts_ = std::move(parts); }
  /// Returns the name of the part at `offset_bytes`, or the owner; may be
  /// empty.
  const std::string& OwnerAt(int64_t offset_bytes) const;
  Block& block() { return block_; }
  /// Returns the id of the context that owns the memory (AllocatorOwner), or 0.
  uint64_t context() const { return context_; }

  /// Returns whether a thread other than the owner's has read the memory.
  /// \threadsafety any thread.
  bool was_handed_over() const {
    return handed_over_.load(std::memory_order_relaxed);
  }
  void NoteHandedOver() {
    if (!was_handed_over()) handed_over_.store(true, std::memory_order_relaxed);
  }

  /// Fails a check if detached; the message names the owner and when it has
  /// memory.
  void CheckAttached() const {
    if (!attached_) FailDetached();
  }
  /// Returns the start of the bytes; null on Device::Meta() or without bytes.
  /// Fails a check if detached.
  std::byte* data() const {
    CheckAttached();
    return data_;
  }

  /// Attaches memory of at least bytes() on `device`.
  /// \pre !attached()
  void Attach(Block block, Device device);
  /// Detaches the memory and returns it.
  /// \pre attached()
  Block Detach();

  /// Returns the number of visible changes of the content: writes by ops, and
  /// other values when memory is attached again. Autograd compares it to detect
  /// a saved tensor that was changed in place. BeginWrite (tensor.h) counts a
  /// write.
  uint32_t version() const { return version_; }
  void BumpVersion() { ++version_; }

 private:
  [[noreturn]] void FailDetached() const;

  Block block_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  uint64_t context_ = 0;
  bool attached_ = false;
  std::atomic<bool> handed_over_{false};
  uint32_t version_ = 0;
  std::string owner_;
  std::vector<Part> parts_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_STORAGE_H_
