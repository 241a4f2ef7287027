// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STORAGE_H_
#define CROSSHATCH_TENSOR_STORAGE_H_

/// \file
/// The memory behind one or more tensors.

#include <cstddef>
#include <cstdint>
#include <string>

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
  Block& block() { return block_; }

  /// Start of the bytes. Fails a check when detached. Null on Device::Meta()
  /// and for no bytes.
  std::byte* data() const {
    if (!attached_) FailDetached();
    return data_;
  }

  /// Takes memory of at least bytes() on `device`. Must be detached.
  void Attach(Block block, Device device);
  /// Gives the memory up. Must be attached.
  Block Detach();

  /// Counts writes made through ops; autograd compares it to find a saved
  /// tensor that was changed in place.
  uint32_t version() const { return version_; }
  void BumpVersion() { ++version_; }

 private:
  [[noreturn]] void FailDetached() const;

  Block block_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  bool attached_ = false;
  uint32_t version_ = 0;
  std::string owner_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_STORAGE_H_
