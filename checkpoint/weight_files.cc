// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weight_files.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;
using FilePtr = std::shared_ptr<const SafetensorsFile>;

StoredTensors TensorsOf(const FilePtr& file) {
  StoredTensors tensors;
  for (size_t i = 0; i < file->tensors().size(); ++i) {
    tensors[file->tensors()[i].name] = {file, static_cast<int>(i)};
  }
  return tensors;
}

/// Returns whether `name` is a file name without a directory.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

absl::StatusOr<StoredTensors> OpenIndexed(const std::string& dir,
                                          const std::string& index_path) {
  CH_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path));
  Json json;
  const absl::Status parsed = ParseJsonObject(text, index_path, json);
  if (!parsed.ok()) return absl::DataLossError(parsed.message());
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object()) {
    return absl::DataLossError(
        absl::StrCat(index_path, " has no weight_map object"));
  }
  std::map<std::string, FilePtr> files;
  StoredTensors tensors;
  for (const auto& [name, value] : weight_map->items()) {
    if (!value.is_string() ||
        !IsPlainFileName(value.get_ref<const std::string&>())) {
      return absl::DataLossError(absl::StrCat(index_path, ": weight_map \"",
                                              name, "\" is not a file name"));
    }
    FilePtr& file = files[value.get_ref<const std::string&>()];
    if (file == nullptr) {
      CH_ASSIGN_OR_RETURN(file,
                          SafetensorsFile::Open(absl::StrCat(
                              dir, "/", value.get_ref<const std::string&>())));
    }
    const int index = file->Find(name);
    if (index < 0) {
      return absl::DataLossError(
          absl::StrCat(file->path(), " does not contain tensor \"", name,
                       "\", which ", index_path, " lists there"));
    }
    tensors[name] = {file, index};
  }
  for (const auto& [file_name, file] : files) {
    for (const TensorInfo& info : file->tensors()) {
      const auto found = tensors.find(info.name);
      if (found == tensors.end() || found->second.file != file) {
        return absl::DataLossError(
            absl::StrCat(file->path(), " holds tensor \"", info.name,
                         "\", which ", index_path, " does not list there"));
      }
    }
  }
  return tensors;
}

}  // namespace

absl::StatusOr<StoredTensors> OpenWeights(const std::string& dir) {
  const std::string single = absl::StrCat(dir, "/model.safetensors");
  const std::string index = absl::StrCat(dir, "/model.safetensors.index.json");
  absl::StatusOr<FilePtr> file = SafetensorsFile::Open(single);
  if (file.ok()) return TensorsOf(*file);
  if (!absl::IsNotFound(file.status())) return file.status();
  absl::StatusOr<StoredTensors> tensors = OpenIndexed(dir, index);
  if (absl::IsNotFound(tensors.status()) &&
      absl::IsNotFound(ReadableFile::Open(index).status())) {
    return absl::NotFoundError(
        absl::StrCat(dir, " holds neither model.safetensors nor ",
                     "model.safetensors.index.json"));
  }
  return tensors;
}

absl::StatusOr<WeightFilesPlan> WeightFilesPlan::Create(
    std::vector<TensorInfo> tensors, int64_t most_bytes) {
  WeightFilesPlan plan;
  plan.files_.emplace_back();
  int64_t bytes = 0;
  for (TensorInfo& tensor : tensors) {
    if (most_bytes > 0 && bytes > 0 && bytes + tensor.bytes() > most_bytes) {
      plan.files_.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    plan.files_.back().tensors.push_back(std::move(tensor));
  }
  const size_t count = plan.files_.size();
  for (size_t i = 0; i < count; ++i) {
    File& file = plan.files_[i];
    file.name = count == 1 ? "model.safetensors"
                           : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                             i + 1, count);
  }
  CH_RETURN_IF_ERROR(plan.SetPlaces());
  return plan;
}

absl::StatusOr<WeightFilesPlan> WeightFilesPlan::OfOneFile(
    const std::string& name, std::vector<TensorInfo> tensors) {
  WeightFilesPlan plan;
  plan.files_.push_back({.name = name, .tensors = std::move(tensors)});
  CH_RETURN_IF_ERROR(plan.SetPlaces());
  return plan;
}

absl::Status WeightFilesPlan::SetPlaces() {
  for (size_t i = 0; i < files_.size(); ++i) {
    File& file = files_[i];
    CH_ASSIGN_OR_RETURN(file.start, SafetensorsStart(file.name, file.tensors));
    auto offset = static_cast<int64_t>(file.start.size());
    for (const TensorInfo& tensor : file.tensors) {
      places_[tensor.name] = {i, offset};
      offset += tensor.bytes();
    }
  }
  return absl::OkStatus();
}

int64_t WeightFilesPlan::File::bytes() const {
  auto bytes = static_cast<int64_t>(start.size());
  for (const TensorInfo& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

WeightFilesPlan::Place WeightFilesPlan::PlaceOf(
    const std::string& tensor) const {
  const auto found = places_.find(tensor);
  CH_CHECK(found != places_.end()) << "no file has " << tensor;
  return found->second;
}

std::string WeightFilesPlan::IndexText() const {
  if (files_.size() == 1) return "";
  std::vector<std::string> places;
  int64_t total = 0;
  for (const File& file : files_) {
    for (const TensorInfo& tensor : file.tensors) {
      total += tensor.bytes();
      places.push_back(absl::StrCat("    ", QuoteJson(tensor.name), ": ",
                                    QuoteJson(file.name)));
    }
  }
  return absl::StrCat("{\n  \"metadata\": {\n    \"total_size\": ", total,
                      "\n  },\n  \"weight_map\": {\n",
                      absl::StrJoin(places, ",\n"), "\n  }\n}\n");
}

WeightFiles::~WeightFiles() {
  if (fd_ >= 0) files_.Close(fd_);
}

std::string WeightFiles::SavingName(size_t file) const {
  return absl::StrCat(directory_, "/", plan_.files()[file].name, ".saving");
}

absl::Status WeightFiles::Create() {
  for (size_t i = 0; i < plan_.files().size(); ++i) {
    CH_RETURN_IF_ERROR(CloseOpen());
    const int error = files_.CreateFile(SavingName(i), fd_);
    if (error != 0) return SystemError(error, "create", SavingName(i));
    open_ = i;
    // Later writes never extend a file. On a network file system, an extending
    // write may fill its page with zeros over data of another machine.
    const int of_length = files_.SetLength(fd_, plan_.files()[i].bytes());
    if (of_length != 0) {
      return SystemError(of_length, "set the length of", SavingName(i));
    }
    const std::string& start = plan_.files()[i].start;
    CH_RETURN_IF_ERROR(
        WriteAll(i, 0, start.data(), static_cast<int64_t>(start.size())));
  }
  // From here on all ranks write to the files.
  return CloseOpen();
}

absl::Status WeightFiles::WriteAll(size_t file, int64_t offset,
                                   const void* data, int64_t bytes) {
  written_.insert(file);
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    int64_t written = 0;
    const int error = files_.WriteAt(fd_, offset, next, bytes, written);
    if (error != 0) return SystemError(error, "write to", SavingName(file));
    next += written;
    offset += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status WeightFiles::Open(size_t file) {
  if (fd_ >= 0 && open_ == file) return absl::OkStatus();
  const absl::Status closed = CloseOpen();
  if (late_.ok()) late_ = closed;
  const int error = files_.OpenFile(SavingName(file), fd_);
  if (error != 0) {
    fd_ = -1;
    return SystemError(error, "open", SavingName(file));
  }
  open_ = file;
  return absl::OkStatus();
}

absl::Status WeightFiles::CloseOpen() {
  if (fd_ < 0) return absl::OkStatus();
  const int error = files_.Close(std::exchange(fd_, -1));
  if (error == 0) return absl::OkStatus();
  return SystemError(error, "close", SavingName(open_));
}

absl::Status WeightFiles::Write(size_t file, int64_t offset, const void* data,
                                int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  CH_RETURN_IF_ERROR(Open(file));
  return WriteAll(file, offset, data, bytes);
}

absl::Status WeightFiles::Append(const void* data, int64_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  appended_ += bytes;
  while (bytes > 0) {
    CH_CHECK_LT(append_file_, plan_.files().size()) << "after the last tensor";
    const WeightFilesPlan::File& file = plan_.files()[append_file_];
    const auto start = static_cast<int64_t>(file.start.size());
    const int64_t here = std::min(bytes, file.bytes() - start - in_file_);
    CH_RETURN_IF_ERROR(Write(append_file_, start + in_file_, next, here));
    next += here;
    bytes -= here;
    in_file_ += here;
    if (start + in_file_ < file.bytes()) continue;
    ++append_file_;
    in_file_ = 0;
  }
  return absl::OkStatus();
}

absl::Status WeightFiles::Sync() {
  for (const size_t file : written_) {
    CH_RETURN_IF_ERROR(Open(file));
    if (const int error = files_.Sync(fd_); error != 0) {
      return SystemError(error, "flush", SavingName(file));
    }
  }
  CH_RETURN_IF_ERROR(CloseOpen());
  return late_;
}

absl::Status WeightFiles::GiveNames() {
  for (size_t i = 0; i < plan_.files().size(); ++i) {
    const std::string path =
        absl::StrCat(directory_, "/", plan_.files()[i].name);
    if (const int error = files_.Rename(SavingName(i), path); error != 0) {
      return SystemError(error, "rename " + SavingName(i) + " to", path);
    }
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::checkpoint
