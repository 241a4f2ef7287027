// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/index.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "crosshatch.checkpoint";
constexpr int64_t kVersion = 1;

bool IsDataFileName(const std::string& name) {
  return MatchesDigits(name, "state-#-of-#.safetensors");
}

std::string FormatDouble(double value) {
  // Omits the sign of a NaN, which has no meaning.
  return std::isnan(value) ? "nan" : absl::StrFormat("%.17g", value);
}

std::string FormatValue(const SmallValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return absl::StrCat(*number);
  }
  if (const auto* real = std::get_if<double>(&value)) {
    return absl::StrCat("{\"double\": \"", FormatDouble(*real), "\"}");
  }
  const auto& text = std::get<std::string>(value);
  if (IsJsonText(text)) return QuoteJson(text);
  return absl::StrCat("{\"base64\": \"", absl::Base64Escape(text), "\"}");
}

/// Returns what is wrong with a value; empty if nothing is.
std::string ParseValue(const Json& json, SmallValue& value) {
  if (json.is_string()) {
    value = json.get<std::string>();
    return "";
  }
  if (json.is_number_integer()) {
    if (json.is_number_unsigned() && !ParseJsonCount(json).has_value()) {
      return "it does not fit 64 bits";
    }
    value = json.get<int64_t>();
    return "";
  }
  if (json.is_object() && json.size() == 1 && json.begin()->is_string()) {
    const std::string& key = json.begin().key();
    const std::string& text = json.begin()->get_ref<const std::string&>();
    double real = 0;
    if (key == "double" && absl::SimpleAtod(text, &real)) {
      value = real;
      return "";
    }
    std::string bytes;
    if (key == "base64" && absl::Base64Unescape(text, &bytes)) {
      value = std::move(bytes);
      return "";
    }
  }
  return "it is neither an integer nor a text, {\"double\": ...} or "
         "{\"base64\": ...}";
}

std::string FormatValues(const CheckpointIndex& index) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : index.values) {
    lines.push_back(absl::StrCat(QuoteJson(name), ": ", FormatValue(value)));
  }
  return absl::StrJoin(lines, ",\n");
}

std::string FormatTensor(const IndexedTensor& tensor) {
  std::vector<std::string> cuts;
  for (const std::vector<int64_t>& of_dim : tensor.cuts) {
    cuts.push_back(absl::StrCat("[", absl::StrJoin(of_dim, ", "), "]"));
  }
  return absl::StrCat(
      "{\"dtype\": \"", SafetensorsName(tensor.dtype), "\", \"shape\": [",
      absl::StrJoin(tensor.sizes, ", "), "], \"cuts\": [",
      absl::StrJoin(cuts, ", "), "], \"files\": [",
      absl::StrJoin(tensor.files, ", "), "]",
      tensor.hash.has_value()
          ? absl::StrCat(", \"hash\": \"", HashToHex(*tensor.hash), "\"")
          : "",
      "}");
}

/// Returns the index up to its hash and final brace.
std::string FormatHashed(const CheckpointIndex& index) {
  std::vector<std::string> files;
  std::vector<std::string> tensors;
  for (const std::string& file : index.files) files.push_back(QuoteJson(file));
  for (const IndexedTensor& tensor : index.tensors) {
    tensors.push_back(
        absl::StrCat(QuoteJson(tensor.name), ": ", FormatTensor(tensor)));
  }
  return absl::StrCat("{\"format\": \"", kFormat, "\", \"version\": ", kVersion,
                      ", \"ranks\": ", index.ranks, ",\n\"files\": [",
                      absl::StrJoin(files, ",\n"), "],\n\"values\": {",
                      FormatValues(index), "},\n\"tensors\": {",
                      absl::StrJoin(tensors, ",\n"), "}");
}

/// Compares the hash `key` of an index with that of `hashed`. An index without
/// it, written by an older version, passes.
/// \returns what is wrong; empty if nothing is.
std::string CheckHashOf(const std::string& hashed, const char* key,
                        const char* what, const Json& json) {
  const std::string hash = HashToHex(HashText(hashed));
  if (!json.contains(key) || json[key] == hash) return "";
  return absl::StrCat(
      what, " differ from the saved ones (hash ", hash, ", saved as ",
      json[key].dump(-1, ' ', false, Json::error_handler_t::replace), ")");
}

std::string ParseCuts(const Json& json, IndexedTensor& tensor) {
  if (!json.is_array() || json.size() != tensor.sizes.size()) {
    return "its cuts are not one list per dim";
  }
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    std::vector<int64_t> cuts;
    for (const Json& cut : json[d].is_array() ? json[d] : Json::array()) {
      const std::optional<int64_t> parsed = ParseJsonCount(cut);
      if (!parsed.has_value() || (!cuts.empty() && *parsed <= cuts.back())) {
        return absl::StrCat("its cuts of dim ", d, " are not ascending");
      }
      cuts.push_back(*parsed);
    }
    if (cuts.empty() || cuts.front() != 0 || cuts.back() != tensor.sizes[d]) {
      return absl::StrCat("its cuts of dim ", d, " do not go from 0 to ",
                          tensor.sizes[d]);
    }
    tensor.cuts.push_back(std::move(cuts));
  }
  return "";
}

std::string ParseCells(const Json& json, size_t num_files,
                       IndexedTensor& tensor) {
  int64_t cells = 1;
  for (const std::vector<int64_t>& cuts : tensor.cuts) {
    // Beyond the size of any list, the product stays so or becomes 0.
    if (__builtin_mul_overflow(cells, static_cast<int64_t>(cuts.size()) - 1,
                               &cells)) {
      return "its cuts make too many cells";
    }
  }
  if (!json.is_array() || static_cast<int64_t>(json.size()) != cells) {
    return absl::StrCat("its files are not one per cell, of its ", cells,
                        " cells");
  }
  for (const Json& file : json) {
    const std::optional<int64_t> parsed = ParseJsonCount(file);
    if (!parsed.has_value() || *parsed >= static_cast<int64_t>(num_files)) {
      return absl::StrCat("a cell is in file ", file.dump(), " of ", num_files);
    }
    tensor.files.push_back(static_cast<int>(*parsed));
  }
  return "";
}

/// Returns what is wrong with a tensor's entry; empty if nothing is.
std::string ParseTensor(const Json& json, size_t num_files,
                        IndexedTensor& tensor) {
  if (!json.is_object()) return "its entry is not an object";
  for (const auto& [key, ignored] : json.items()) {
    if (key != "dtype" && key != "shape" && key != "cuts" && key != "files" &&
        key != "hash") {
      return absl::StrCat("its entry has an unknown field \"", key, "\"");
    }
  }
  for (const char* key : {"dtype", "shape", "cuts", "files"}) {
    if (!json.contains(key)) return absl::StrCat("it has no ", key);
  }
  const std::optional<DType> dtype =
      json["dtype"].is_string()
          ? DTypeOfSafetensors(json["dtype"].get_ref<const std::string&>())
          : std::nullopt;
  if (!dtype.has_value()) {
    return absl::StrCat("its dtype ", json["dtype"].dump(),
                        " is not supported");
  }
  tensor.dtype = *dtype;
  if (!json["shape"].is_array()) return "its shape is not a list of sizes";
  for (const Json& size : json["shape"]) {
    const std::optional<int64_t> parsed = ParseJsonCount(size);
    if (!parsed.has_value()) return "its shape is not a list of sizes";
    tensor.sizes.push_back(*parsed);
  }
  if (!CheckedBytes(tensor.sizes, tensor.dtype).has_value()) {
    return "its size does not fit 64 bits";
  }
  std::string wrong = ParseCuts(json["cuts"], tensor);
  if (wrong.empty()) wrong = ParseCells(json["files"], num_files, tensor);
  if (!wrong.empty() || !json.contains("hash")) return wrong;
  uint64_t hash = 0;
  if (!json["hash"].is_string() ||
      !HashFromHex(json["hash"].get_ref<const std::string&>(), hash)) {
    return "its hash is not 16 hexadecimal digits";
  }
  tensor.hash = hash;
  return "";
}

/// Returns what is wrong with the fields other than tensors and values; empty
/// if nothing is.
std::string ParseHead(const Json& json, CheckpointIndex& index) {
  for (const auto& [key, ignored] : json.items()) {
    if (key != "format" && key != "version" && key != "ranks" &&
        key != "files" && key != "values" && key != "values_hash" &&
        key != "tensors" && key != "index_hash") {
      return absl::StrCat("it has an unknown field \"", key, "\"");
    }
  }
  const std::optional<int64_t> ranks =
      json.contains("ranks") ? ParseJsonCount(json["ranks"]) : std::nullopt;
  if (ranks.value_or(0) < 1 || *ranks > std::numeric_limits<int>::max()) {
    return "its ranks are not a number of at least 1";
  }
  index.ranks = static_cast<int>(*ranks);
  for (const char* key : {"values", "tensors"}) {
    if (!json.contains(key) || !json[key].is_object()) {
      return absl::StrCat("its ", key, " are not an object");
    }
  }
  if (!json.contains("files") || !json["files"].is_array()) {
    return "its files are not a list";
  }
  std::set<std::string> names;
  for (const Json& file : json["files"]) {
    // Other names could lead out of the directory.
    if (!file.is_string() ||
        !IsDataFileName(file.get_ref<const std::string&>())) {
      return absl::StrCat(
          "its file ",
          file.dump(-1, ' ', false, Json::error_handler_t::replace),
          " does not have a name like state-00001-of-00002.safetensors");
    }
    index.files.push_back(file.get<std::string>());
    if (!names.insert(index.files.back()).second) {
      return absl::StrCat("it names the file ", index.files.back(), " twice");
    }
  }
  return "";
}

}  // namespace

std::string DataFileName(int number, int count) {
  return absl::StrFormat("state-%05d-of-%05d.safetensors", number + 1, count);
}

std::string ReportFileName(int rank) {
  return absl::StrFormat("report-%05d", rank);
}

bool IsCheckpointFile(const std::string& name) {
  return name == kIndexFile || IsDataFileName(name) ||
         MatchesDigits(name, "report-#") ||
         MatchesDigits(name, "report-#.saving");
}

std::string ValueText(const SmallValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return absl::StrCat(*number);
  }
  if (const auto* real = std::get_if<double>(&value)) {
    const std::string text = FormatDouble(*real);
    const bool looks_whole =
        text.find_first_not_of("-0123456789") == std::string::npos;
    return looks_whole ? text + ".0" : text;
  }
  const auto& text = std::get<std::string>(value);
  return IsJsonText(text) ? QuoteJson(text)
                          : absl::StrCat("\"", absl::CHexEscape(text), "\"");
}

Box IndexedTensor::CellBox(int cell) const {
  Box box = WholeBox(sizes);
  int64_t rest = cell;
  for (size_t d = sizes.size(); d-- > 0;) {
    const auto along = static_cast<int64_t>(cuts[d].size()) - 1;
    const auto i = static_cast<size_t>(rest % along);
    rest /= along;
    box.offsets[d] = cuts[d][i];
    box.sizes[d] = cuts[d][i + 1] - cuts[d][i];
  }
  return box;
}

std::string IndexedTensor::CellName(int cell) const {
  return num_cells() == 1 ? name : name + ToString(CellBox(cell));
}

std::vector<int> IndexedTensor::CellsIntersecting(const Box& box) const {
  CH_CHECK(Contains(WholeBox(sizes), box)) << ToString(box) << " of " << name;
  std::vector<int> cells = {0};
  if (box.empty()) cells.clear();
  for (size_t d = 0; d < sizes.size() && !cells.empty(); ++d) {
    const std::vector<int64_t>& c = cuts[d];
    const auto first =
        std::upper_bound(c.begin(), c.end(), box.offsets[d]) - c.begin() - 1;
    const auto last =
        std::lower_bound(c.begin(), c.end(), box.offsets[d] + box.sizes[d]) -
        c.begin();
    std::vector<int> next;
    for (const int cell : cells) {
      for (auto i = first; i < last; ++i) {
        next.push_back(cell * static_cast<int>(c.size() - 1) +
                       static_cast<int>(i));
      }
    }
    cells = std::move(next);
  }
  return cells;
}

const IndexedTensor* CheckpointIndex::Find(const std::string& name) const {
  const auto at = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const IndexedTensor& t, const std::string& n) { return t.name < n; });
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

std::vector<std::string> CheckpointIndex::Names() const {
  std::vector<std::string> names;
  for (const IndexedTensor& tensor : tensors) names.push_back(tensor.name);
  for (const auto& [name, value] : values) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

int64_t CheckpointIndex::bytes() const {
  int64_t bytes = 0;
  for (const IndexedTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

absl::StatusOr<std::string> FormatIndex(const CheckpointIndex& index) {
  for (const std::string& name : index.Names()) {
    if (!IsJsonText(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the name \"", absl::CHexEscape(name),
          "\" in the state is not UTF-8, which an index requires"));
    }
  }
  const std::string hashed = FormatHashed(index);
  return absl::StrCat(hashed, ",\n\"index_hash\": \"",
                      HashToHex(HashText(hashed)), "\"}\n");
}

absl::StatusOr<CheckpointIndex> ParseIndex(const std::string& text,
                                           const std::string& what) {
  const auto corrupt = [&](const auto&... wrong) {
    return absl::DataLossError(absl::StrCat(
        what, " is not a valid index of a checkpoint: ", wrong...));
  };
  Json json;
  const absl::Status parsed = ParseJsonObject(text, "it", json);
  if (!parsed.ok()) return corrupt(parsed.message());
  if (json.value("format", Json()) != kFormat) {
    return corrupt("its format is not \"", kFormat, "\"");
  }
  const std::optional<int64_t> version =
      ParseJsonCount(json.value("version", Json()));
  if (!version.has_value()) return corrupt("it has no version");
  if (*version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat(what, " is of version ", *version,
                     " of the format; this library reads version ", kVersion));
  }
  CheckpointIndex index;
  std::string wrong = ParseHead(json, index);
  if (!wrong.empty()) return corrupt(wrong);
  for (const auto& [name, value] : json["values"].items()) {
    if (name.empty()) return corrupt("a value has no name");
    wrong = ParseValue(value, index.values[name]);
    if (!wrong.empty()) return corrupt("value \"", name, "\": ", wrong);
  }
  for (const auto& [name, value] : json["tensors"].items()) {
    if (name.empty()) return corrupt("a tensor has no name");
    if (index.values.count(name) > 0) {
      return corrupt("\"", name, "\" is a tensor and a value");
    }
    IndexedTensor tensor;
    tensor.name = name;
    wrong = ParseTensor(value, index.files.size(), tensor);
    if (!wrong.empty()) return corrupt("tensor \"", name, "\": ", wrong);
    index.tensors.push_back(std::move(tensor));
  }
  // An index of a version before index_hash has a hash of its values only.
  wrong = CheckHashOf(FormatValues(index), "values_hash", "its values", json);
  if (wrong.empty()) {
    wrong =
        CheckHashOf(FormatHashed(index), "index_hash", "its contents", json);
  }
  if (!wrong.empty()) return corrupt(wrong);
  return index;
}

absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kIndexFile);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(dir, " is not a checkpoint: it has no ", kIndexFile));
  }
  CH_RETURN_IF_ERROR(text.status());
  return ParseIndex(*text, path);
}

std::vector<CellPart> PartsOf(const IndexedTensor& tensor, const Box& box) {
  std::vector<CellPart> parts;
  for (const int cell : tensor.CellsIntersecting(box)) {
    parts.push_back({cell, Intersect(tensor.CellBox(cell), box)});
  }
  return parts;
}

absl::Status DataFiles::Open(const IndexedTensor& tensor,
                             absl::Span<const CellPart> parts) {
  for (const CellPart& part : parts) {
    const auto number =
        static_cast<size_t>(tensor.files[static_cast<size_t>(part.cell)]);
    std::shared_ptr<const SafetensorsFile>& file = files_[number];
    const std::string path = absl::StrCat(dir_, "/", index_.files[number]);
    if (file == nullptr) {
      absl::StatusOr<std::shared_ptr<const SafetensorsFile>> opened =
          SafetensorsFile::Open(path);
      if (absl::IsNotFound(opened.status())) {
        return absl::DataLossError(
            absl::StrCat(path, " is missing, which ", kIndexFile,
                         " lists: the checkpoint was copied incompletely, or "
                         "its save did not finish"));
      }
      if (!opened.ok()) return opened.status();
      file = *std::move(opened);
      ++opened_;
    }
    const std::string name = tensor.CellName(part.cell);
    const int index = file->Find(name);
    if (index < 0) {
      return absl::DataLossError(absl::StrCat(
          path, " lacks \"", name, "\", which ", kIndexFile, " lists there"));
    }
    const TensorInfo& info = file->tensors()[static_cast<size_t>(index)];
    const Shape& sizes = tensor.CellBox(part.cell).sizes;
    if (info.dtype != tensor.dtype || info.sizes != sizes) {
      return absl::DataLossError(absl::StrCat(
          path, " holds \"", name, "\" as ", SafetensorsName(info.dtype),
          ToString(info.sizes), ", and ", kIndexFile, " lists it as ",
          SafetensorsName(tensor.dtype), ToString(sizes)));
    }
  }
  return absl::OkStatus();
}

DataFiles::Stored DataFiles::Find(const IndexedTensor& tensor, int cell) const {
  const auto number =
      static_cast<size_t>(tensor.files[static_cast<size_t>(cell)]);
  CH_CHECK(files_[number] != nullptr) << index_.files[number] << " not opened";
  const SafetensorsFile* file = files_[number].get();
  return {file, file->Find(tensor.CellName(cell))};
}

absl::StatusOr<int64_t> DataFiles::Read(const IndexedTensor& tensor,
                                        absl::Span<const CellPart> parts,
                                        const Box& box, DType dtype,
                                        void* out) const {
  int64_t bytes = 0;
  for (const CellPart& part : parts) {
    const Stored stored = Find(tensor, part.cell);
    CH_ASSIGN_OR_RETURN(
        const int64_t copied,
        stored.file->ReadInto(
            stored.index,
            RelativeTo(part.box, tensor.CellBox(part.cell).offsets), dtype, out,
            box.sizes, RelativeTo(part.box, box.offsets)));
    bytes += copied;
  }
  return bytes;
}

absl::StatusOr<DataFiles::Hashed> DataFiles::Hash(
    const IndexedTensor& tensor, absl::Span<const CellPart> parts) const {
  Hashed hashed;
  const int64_t element = SizeOf(tensor.dtype);
  for (const CellPart& part : parts) {
    const Stored stored = Find(tensor, part.cell);
    CH_RETURN_IF_ERROR(stored.file->VisitRuns(
        stored.index, RelativeTo(part.box, tensor.CellBox(part.cell).offsets),
        tensor.sizes, part.box,
        [&](const std::byte* data, int64_t in_tensor, int64_t count) {
          hashed.hash += HashRun(data, element, in_tensor, count);
          hashed.bytes += count * element;
        }));
  }
  return hashed;
}

}  // namespace crosshatch::checkpoint
