// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STORAGE_H_
#define CROSSHATCH_TENSOR_STORAGE_H_

/// \file
/// The memory behind one or more tensors.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"

namespace crosshatch {

/// A run of bytes that tensors view. The memory itself is a Block that can be
/// attached and detached: a gathered parameter is one Tensor for life whose
/// storage has memory only while it is gathered, and views and tensors saved
/// for backward share that storage. Touching a detached storage is an error
/// that names its owner.
class Storage {
 public:
  /// Storage with memory.
  explicit Storage(Block block, Device device);
  /// Storage of `bytes` without memory, on Device::Meta() until attached.
  /// \param owner names it in errors, e.g. "layers.0.wq.weight".
  Storage(int64_t bytes, std::string owner);
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool attached() const { return attached_; }
  const std::string& owner() const { return owner_; }
  /// What lies in the bytes from `begin_bytes` on, up to the next part's.
  struct Part {
    int64_t begin_bytes;
    std::string name;
  };
  /// Names parts of the bytes, in their order: the parameters of a group.
  void set_parts(std::vector<Part> parts) { parts_ = std::move(parts); }
  /// Of the byte at `offset_bytes`: its part, or the owner; may be empty.
  const std::string& OwnerAt(int64_t offset_bytes) const;
  Block& block() { return block_; }
  /// The context that the memory is of (AllocatorOwner); 0: nobody's.
  uint64_t context() const { return context_; }

  /// Whether a thread other than the one whose memory it is has read it.
  /// \threadsafety any thread.
  bool was_handed_over() const {
    return handed_over_.load(std::memory_order_relaxed);
  }
  void NoteHandedOver() {
    if (!was_handed_over()) handed_over_.store(true, std::memory_order_relaxed);
  }

  /// Fails a check that names the owner, and says when it has memory, when
  /// detached.
  void CheckAttached() const {
    if (!attached_) FailDetached();
  }
  /// Start of the bytes. Fails a check when detached. Null on Device::Meta()
  /// and for no bytes.
  std::byte* data() const {
    CheckAttached();
    return data_;
  }

  /// Takes memory of at least bytes() on `device`. Must be detached.
  void Attach(Block block, Device device);
  /// Gives the memory up. Must be attached.
  Block Detach();

  /// Counts changes of the content that a holder of a tensor could notice:
  /// writes made through ops, and other values where memory is attached anew.
  /// Autograd compares it to find a saved tensor that was changed in place.
  /// Whoever writes to a tensor counts it by BeginWrite (tensor.h).
  uint32_t version() const { return version_; }
  void BumpVersion() { ++version_; }

 private:
  [[noreturn]] void FailDetached() const;
  void TakeBlock(Block block);

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
