// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weight_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

int64_t BytesOf(const std::vector<TensorInfo>& tensors) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightFiles>> WeightFiles::Create(
    NewDirectory& directory, std::vector<TensorInfo> tensors,
    int64_t most_bytes, FileSystem& files) {
  std::unique_ptr<WeightFiles> made(new WeightFiles(directory, files));
  made->by_file_.emplace_back();
  int64_t bytes = 0;
  for (TensorInfo& tensor : tensors) {
    if (most_bytes > 0 && bytes > 0 && bytes + tensor.bytes() > most_bytes) {
      made->by_file_.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    made->by_file_.back().push_back(std::move(tensor));
  }
  if (made->by_file_.size() > 1) {
    // Small, and before the weights: a full disk is found early.
    nlohmann::ordered_json index = {
        {"metadata", {{"total_size", 0}}},
        {"weight_map", nlohmann::ordered_json::object()}};
    int64_t total = 0;
    for (size_t i = 0; i < made->by_file_.size(); ++i) {
      total += BytesOf(made->by_file_[i]);
      for (const TensorInfo& tensor : made->by_file_[i]) {
        index["weight_map"][tensor.name] = made->FileName(i);
      }
    }
    index["metadata"]["total_size"] = total;
    CH_ASSIGN_OR_RETURN(
        const std::unique_ptr<AtomicFile> file,
        AtomicFile::Create(directory.Add("model.safetensors.index.json"),
                           files));
    const std::string text = index.dump(2) + "\n";
    CH_RETURN_IF_ERROR(
        file->Append(text.data(), static_cast<int64_t>(text.size())));
    CH_RETURN_IF_ERROR(file->Commit());
  }
  CH_RETURN_IF_ERROR(made->OpenNext());
  return made;
}

std::string WeightFiles::FileName(size_t file) const {
  if (by_file_.size() == 1) return "model.safetensors";
  return absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1,
                         by_file_.size());
}

absl::Status WeightFiles::OpenNext() {
  // transformers asks for the format.
  CH_ASSIGN_OR_RETURN(
      writer_,
      SafetensorsWriter::Create(directory_.Add(FileName(file_)),
                                by_file_[file_], {{"format", "pt"}}, files_));
  return absl::OkStatus();
}

absl::Status WeightFiles::Write(const std::string& name, const void* data,
                                int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (writer_->IsComplete()) {
    CH_RETURN_IF_ERROR(writer_->Finish());
    ++file_;
    CH_CHECK_LT(file_, by_file_.size()) << name << " after the last tensor";
    CH_RETURN_IF_ERROR(OpenNext());
  }
  return writer_->WritePart(name, data, bytes);
}

absl::Status WeightFiles::Finish() {
  CH_CHECK_EQ(file_ + 1, by_file_.size()) << "some tensors were not written";
  return writer_->Finish();
}

}  // namespace crosshatch::checkpoint
