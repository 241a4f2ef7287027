// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_RECORDING_KERNELS_H_
#define CROSSHATCH_VERIFY_RECORDING_KERNELS_H_

/// \file
/// Kernels that compute nothing and log their operands. A dry run launches them
/// because their table sets KernelTable::record_own.

#include <memory>
#include <string>

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::verify {

/// A device whose kernels log. Workspaces are those of `real`. Only for
/// contexts with a Recorder, which makes the streams and the memory.
class RecordingBackend final : public DeviceBackend {
 public:
  explicit RecordingBackend(const DeviceBackend& real);

  std::unique_ptr<Stream> MakeStream(const std::string& name, StreamRole role,
                                     const RankParts& rank) const override;
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override;
  std::unique_ptr<Allocator> MakeHostAllocator(bool adversarial) const override;

 private:
  RecordingBackend(const DeviceBackend& real,
                   std::unique_ptr<const KernelTable> table);
  const std::unique_ptr<const KernelTable> table_;
};

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_RECORDING_KERNELS_H_
