// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/storage.h"

#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch {

namespace {

uint64_t ContextOf(const Block& block) {
  return block.allocator() == nullptr ? 0 : block.allocator()->owner().context;
}

}  // namespace

Storage::Storage(Block&& block, Device device)
    : block_(std::move(block)),
      data_(block_.data()),
      bytes_(block_.bytes()),
      device_(device),
      context_(ContextOf(block_)),
      attached_(true) {}

Storage::Storage(int64_t bytes, std::string owner)
    : bytes_(bytes), device_(Device::Meta()), owner_(std::move(owner)) {
  CH_CHECK_GE(bytes, 0) << "size of the storage of " << owner_;
}

void Storage::Attach(Block block, Device device) {
  CH_CHECK(!attached_) << "attaching memory to " << owner_
                       << ", which has memory already";
  CH_CHECK_GE(block.bytes(), bytes_) << "memory attached to " << owner_;
  block_ = std::move(block);
  data_ = block_.data();
  device_ = device;
  context_ = ContextOf(block_);
  attached_ = true;
}

Block Storage::Detach() {
  CH_CHECK(attached_) << "detaching the memory of " << owner_
                      << ", which has none";
  data_ = nullptr;
  context_ = 0;
  device_ = Device::Meta();
  attached_ = false;
  return std::move(block_);
}

const std::string& Storage::OwnerAt(int64_t offset_bytes) const {
  const std::string* name = &owner_;
  for (const Part& part : parts_) {
    if (part.begin_bytes > offset_bytes) break;
    name = &part.name;
  }
  return *name;
}

void Storage::FailDetached() const {
  CH_CHECK(false)
      << "the memory of " << owner_ << " (" << bytes_
      << " bytes) was touched while it is not attached: its owner gives it "
      << "memory only for the time of its use. A parameter has none before "
      << "Module::Materialize, which reaches the modules that their parents "
      << "registered (RegisterModule). A sharded one, \"(gathered)\", has it "
      << "while its module runs: elsewhere Parameter::data() is the shard, and "
      << "SummonFullParameters gives the whole";
  __builtin_unreachable();
}

}  // namespace crosshatch
