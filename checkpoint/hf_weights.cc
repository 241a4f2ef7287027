// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_weights.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

}  // namespace crosshatch::checkpoint
