// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HF_WEIGHTS_H_
#define CROSSHATCH_CHECKPOINT_HF_WEIGHTS_H_

/// \file
/// Opens the weight files of a Hugging Face directory as one set of tensors.

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/safetensors.h"

namespace crosshatch::checkpoint {

struct StoredTensor {
  std::shared_ptr<const SafetensorsFile> file;
  int index = 0;

  const TensorInfo& info() const {
    return file->tensors()[static_cast<size_t>(index)];
  }
};

/// Tensors by name.
using StoredTensors = std::map<std::string, StoredTensor>;

/// Opens `dir`/model.safetensors or, if it does not exist, the files that
/// `dir`/model.safetensors.index.json names. Reads headers only.
/// \error kNotFound if neither exists; kDataLoss, naming file and tensor, if a
///     file is invalid or the index and files disagree.
absl::StatusOr<StoredTensors> OpenWeights(const std::string& dir);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HF_WEIGHTS_H_
