// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/checkpoint/json_text-inl.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using Json = nlohmann::json;

// The format's limit. It also prevents the use of a corrupt length.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kPrefixBytes = 8;
// The size of a read. It stays in a CPU's cache until it is copied.
// kPageBytes is the size up to which a disk takes the same time for a read.
constexpr int64_t kWindowBytes = int64_t{256} << 10;
constexpr int64_t kPageBytes = int64_t{4} << 10;
constexpr char kMetadataKey[] = "__metadata__";

static_assert(
    std::endian::native == std::endian::little,
    "files are little-endian and are read and written without conversion");

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypeNames[] = {
    {"F32", DType::kFloat32},   {"F64", DType::kFloat64},
    {"BF16", DType::kBFloat16}, {"F16", DType::kFloat16},
    {"I32", DType::kInt32},     {"I64", DType::kInt64},
    {"U16", DType::kUInt16},    {"BOOL", DType::kBool},
};

/// Entry: one tensor in the header. ParseEntry returns what is wrong with it;
/// empty if nothing is.
struct Entry {
  TensorInfo info;
  int64_t begin = 0;
  int64_t end = 0;
};
std::string ParseEntry(const Json& value, Entry& entry) {
  if (!value.is_object()) return "its entry is not an object";
  for (const auto& [key, ignored] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return absl::StrCat("its entry has an unknown field \"", key, "\"");
    }
  }
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) return "it has no dtype";
  const auto& dtype_name = dtype->get_ref<const std::string&>();
  const std::optional<DType> parsed_dtype = DTypeOfSafetensors(dtype_name);
  if (!parsed_dtype.has_value()) {
    return absl::StrCat("its dtype \"", dtype_name,
                        "\" is not one of F32 F64 BF16 F16 I32 I64 U16 BOOL");
  }
  entry.info.dtype = *parsed_dtype;

  const auto shape = value.find("shape");
  if (shape == value.end() || !shape->is_array()) return "it has no shape";
  for (const Json& size : *shape) {
    const std::optional<int64_t> parsed = ParseJsonCount(size);
    if (!parsed.has_value()) return "its shape is not a list of sizes";
    entry.info.sizes.push_back(*parsed);
  }

  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2) {
    return "it has no data_offsets of two numbers";
  }
  const std::optional<int64_t> begin = ParseJsonCount((*offsets)[0]);
  const std::optional<int64_t> end = ParseJsonCount((*offsets)[1]);
  if (!begin.has_value() || !end.has_value() || *begin > *end) {
    return "its data_offsets are not a range";
  }
  entry.begin = *begin;
  entry.end = *end;
  const std::optional<int64_t> bytes =
      CheckedBytes(entry.info.sizes, entry.info.dtype);
  if (!bytes.has_value() || *bytes != *end - *begin) {
    return absl::StrCat("its data_offsets hold ", *end - *begin,
                        " bytes, which is not the size of ", dtype_name,
                        ToString(entry.info.sizes));
  }
  return "";
}

template <typename From, typename To>
void ConvertRun(const std::byte* from, std::byte* to, int64_t count) {
  // Float is wide enough for the narrower type, except between float32 and
  // float64. So values round only once, except from float64 to 16 bits.
  using Via = std::conditional_t<
      std::is_same_v<From, double> && std::is_same_v<To, float>, double, float>;
  for (int64_t i = 0; i < count; ++i) {
    From source;
    std::memcpy(&source, from + i * sizeof(From), sizeof(From));
    const To result(static_cast<Via>(source));
    std::memcpy(to + i * sizeof(To), &result, sizeof(To));
  }
}

using RunConverter = void (*)(const std::byte* from, std::byte* to,
                              int64_t count);

template <typename From>
RunConverter ConverterFrom(DType to) {
  switch (to) {
    case DType::kFloat32:
      return ConvertRun<From, float>;
    case DType::kFloat64:
      return ConvertRun<From, double>;
    case DType::kBFloat16:
      return ConvertRun<From, BFloat16>;
    case DType::kFloat16:
      return ConvertRun<From, Float16>;
    default:
      return nullptr;
  }
}

void CopyBools(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[i] == std::byte{0} ? std::byte{0} : std::byte{1};
  }
}

/// Returns null for plain bytes.
RunConverter ConverterOf(DType from, DType to) {
  if (from == DType::kBool) return CopyBools;
  if (from == to) return nullptr;
  switch (from) {
    case DType::kFloat32:
      return ConverterFrom<float>(to);
    case DType::kFloat64:
      return ConverterFrom<double>(to);
    case DType::kBFloat16:
      return ConverterFrom<BFloat16>(to);
    case DType::kFloat16:
      return ConverterFrom<Float16>(to);
    default:
      return nullptr;
  }
}

}  // namespace

const char* SafetensorsName(DType dtype) {
  for (const DTypeName& entry : kDTypeNames) {
    if (dtype == entry.dtype) return entry.name;
  }
  return "unknown";
}

std::optional<DType> DTypeOfSafetensors(const std::string& name) {
  for (const DTypeName& entry : kDTypeNames) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<int64_t> CheckedBytes(ShapeView sizes, DType dtype) {
  int64_t bytes = SizeOf(dtype);
  bool overflow = false;
  bool zero = false;
  for (int64_t size : sizes) {
    zero = zero || size == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (zero) return 0;
  if (overflow) return std::nullopt;
  return bytes;
}

bool CanConvert(DType from, DType to) {
  return from == to || (IsFloatingPoint(from) && IsFloatingPoint(to));
}

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  CH_ASSIGN_OR_RETURN(file->file_, ReadableFile::Open(path));
  CH_RETURN_IF_ERROR(file->ParseHeader());
  return file;
}

absl::Status SafetensorsFile::ParseHeader() {
  const auto corrupt = [this](const auto&... what) {
    return absl::DataLossError(
        absl::StrCat(path(), " is not a valid safetensors file: ", what...));
  };
  const int64_t file_bytes = file_->size();
  if (file_bytes < kPrefixBytes) {
    return corrupt("it ends after ", file_bytes,
                   " bytes, within the length of its header");
  }
  uint64_t header_bytes = 0;
  CH_RETURN_IF_ERROR(file_->Read(0, sizeof(header_bytes), &header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return corrupt("its header declares ", header_bytes,
                   " bytes, more than the ", kMaxHeaderBytes,
                   " that the format allows");
  }
  const int64_t data_start = kPrefixBytes + static_cast<int64_t>(header_bytes);
  if (data_start > file_bytes) {
    return corrupt("it is truncated: its header declares ", header_bytes,
                   " bytes but the file has ", file_bytes);
  }
  std::string text(static_cast<size_t>(header_bytes), '\0');
  CH_RETURN_IF_ERROR(file_->Read(
      kPrefixBytes, static_cast<int64_t>(header_bytes), text.data()));
  Json json;
  const absl::Status parsed = ParseJsonObject(text, "its header", json);
  if (!parsed.ok()) return corrupt(parsed.message());

  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      if (!value.is_object()) return corrupt("__metadata__ is not an object");
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string()) {
          return corrupt("__metadata__ \"", key, "\" is not a string");
        }
        metadata_[key] = text_value.get<std::string>();
      }
      continue;
    }
    Entry entry;
    entry.info.name = name;
    const std::string wrong = ParseEntry(value, entry);
    if (!wrong.empty()) return corrupt("tensor \"", name, "\": ", wrong);
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  const int64_t data_bytes = file_bytes - data_start;
  int64_t expected = 0;
  for (Entry& entry : entries) {
    if (entry.end > data_bytes) {
      return corrupt("it is truncated: tensor \"", entry.info.name,
                     "\" ends at byte ", entry.end, " of the data, which has ",
                     data_bytes);
    }
    if (entry.begin != expected) {
      return corrupt("tensor \"", entry.info.name, "\" starts at byte ",
                     entry.begin, " of the data, ",
                     entry.begin < expected
                         ? "inside the tensor before it, which ends at "
                         : "leaving a gap after the tensor that ends at ",
                     expected);
    }
    expected = entry.end;
    index_[entry.info.name] = static_cast<int>(tensors_.size());
    offsets_.push_back(entry.begin);
    tensors_.push_back(std::move(entry.info));
  }
  if (expected != data_bytes) {
    return corrupt("its tensors end at byte ", expected,
                   " of the data, which has ", data_bytes);
  }
  data_start_ = data_start;
  return absl::OkStatus();
}

int SafetensorsFile::Find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? -1 : found->second;
}

absl::StatusOr<int64_t> SafetensorsFile::Read(int index, const Box& box,
                                              DType dtype, void* out) const {
  return ReadInto(index, box, dtype, out, box.sizes, WholeBox(box.sizes));
}

absl::StatusOr<int64_t> SafetensorsFile::ReadInto(int index, const Box& box,
                                                  DType dtype, void* out,
                                                  ShapeView out_sizes,
                                                  const Box& out_box) const {
  const TensorInfo& info = tensors_[static_cast<size_t>(index)];
  CH_CHECK(CanConvert(info.dtype, dtype))
      << info.name << ": " << info.dtype << " to " << dtype;
  const int64_t from_size = SizeOf(info.dtype);
  const int64_t to_size = SizeOf(dtype);
  auto* const to = static_cast<std::byte*>(out);
  const RunConverter convert = ConverterOf(info.dtype, dtype);
  int64_t bytes = 0;
  CH_RETURN_IF_ERROR(VisitRuns(
      index, box, out_sizes, out_box,
      [&](const std::byte* source, int64_t first, int64_t count) {
        std::byte* target = to + first * to_size;
        if (convert == nullptr) {
          std::memcpy(target, source, static_cast<size_t>(count * from_size));
        } else {
          convert(source, target, count);
        }
        bytes += count * from_size;
      }));
  return bytes;
}

absl::Status SafetensorsFile::VisitRuns(
    int index, const Box& box, ShapeView out_sizes, const Box& out_box,
    absl::FunctionRef<void(const std::byte* data, int64_t first, int64_t count)>
        take) const {
  if (box.empty()) return absl::OkStatus();
  const TensorInfo& info = tensors_[static_cast<size_t>(index)];
  const int64_t element = SizeOf(info.dtype);
  const int64_t start = data_start_ + offsets_[static_cast<size_t>(index)];
  const Shape strides = ContiguousStrides(info.sizes);
  int64_t span = 1;
  int64_t end = start + element;
  for (size_t d = 0; d < strides.size(); ++d) {
    span += (box.sizes[d] - 1) * strides[d];
    end += (box.offsets[d] + box.sizes[d] - 1) * strides[d] * element;
  }
  // If runs are close together, reads the gaps between them too.
  const bool is_dense = span / 2 <= box.numel();
  std::vector<std::byte> window;
  int64_t window_begin = 0;
  int64_t window_end = 0;
  absl::Status status;
  ForEachRunOfBoth(
      info.sizes, box, out_sizes, out_box,
      [&](int64_t from, int64_t to, int64_t count) {
        while (count > 0 && status.ok()) {
          const int64_t at = start + from * element;
          if (at >= window_end) {
            const int64_t wanted =
                is_dense
                    ? kWindowBytes
                    : std::clamp(count * element, kPageBytes, kWindowBytes);
            window_begin = at;
            window_end = std::min(at + wanted, end);
            window.resize(static_cast<size_t>(window_end - window_begin));
            status = file_->Read(window_begin, window_end - window_begin,
                                 window.data());
            if (!status.ok()) return;
          }
          const int64_t here = std::min(count, (window_end - at) / element);
          take(window.data() + (at - window_begin), to, here);
          from += here;
          to += here;
          count -= here;
        }
      });
  return status;
}

absl::StatusOr<std::string> SafetensorsStart(
    const std::string& path, const std::vector<TensorInfo>& tensors) {
  // Built in the order of the data, because nlohmann's ordered object would
  // search all names to add one.
  std::vector<std::string> entries = {
      absl::StrCat("\"", kMetadataKey, R"(":{"format":"pt"})")};
  int64_t offset = 0;
  absl::flat_hash_set<absl::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write ", path, ": the name \"", tensor.name,
                       "\" is reserved"));
    }
    const int64_t end = offset + tensor.bytes();
    entries.push_back(absl::StrCat(
        QuoteJson(tensor.name), ":{\"dtype\":\"", SafetensorsName(tensor.dtype),
        "\",\"shape\":[", absl::StrJoin(tensor.sizes, ","),
        "],\"data_offsets\":[", offset, ",", end, "]}"));
    offset = end;
  }
  std::string text = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": a header of ", text.size(),
                     " bytes is longer than the format allows"));
  }
  const uint64_t header_bytes = text.size();
  std::string start(sizeof(header_bytes), '\0');
  std::memcpy(start.data(), &header_bytes, sizeof(header_bytes));
  return start + text;
}

}  // namespace crosshatch::checkpoint
