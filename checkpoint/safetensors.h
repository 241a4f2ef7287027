// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAFETENSORS_H_
#define CROSSHATCH_CHECKPOINT_SAFETENSORS_H_

/// \file
/// Reads the safetensors format, strictly. weight_files.h writes it.
///
/// A file consists of the length of the header in eight bytes (little-endian),
/// the header and the data. The header is a JSON object with each tensor's
/// dtype, shape and place:
///
///     {"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
///      "__metadata__": {"format": "pt"}}
///
/// Offsets are relative to the start of the data. Tensors are row-major and
/// cover the data without gaps or overlaps.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// A tensor as the header describes it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sizes;

  int64_t bytes() const { return NumElements(sizes) * SizeOf(dtype); }
};

/// Returns the format's name of a dtype: "F32", "BF16", ...
const char* SafetensorsName(DType dtype);
/// Returns the dtype of a name; nullopt if DType has none.
std::optional<DType> DTypeOfSafetensors(const std::string& name);

/// Returns the size in bytes of a tensor of non-negative `sizes`; nullopt on
/// overflow.
std::optional<int64_t> CheckedBytes(ShapeView sizes, DType dtype);

/// Returns whether values of `from` can be read into memory of `to`: both are
/// the same dtype or both are floating-point.
bool CanConvert(DType from, DType to);

/// An open safetensors file. Immutable; threads may share it.
class SafetensorsFile {
 public:
  /// Opens the file and validates its whole header: tensors of an accepted file
  /// can be read as long as the file does not change. Refuses dtypes that DType
  /// lacks.
  /// \error kDataLoss, naming the file and the tensor, for a truncated or
  ///     corrupt file; errors of the system.
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(
      const std::string& path);

  const std::string& path() const { return file_->path(); }
  /// Returns the tensors in the order of their data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }

  /// Returns an index in tensors(), or -1.
  int Find(const std::string& name) const;

  /// Copies the part `box` of tensor `index` to `out`, dense and row-major,
  /// converted to `dtype`. Reads only that part, and small gaps between its
  /// runs.
  /// \pre the box is within the tensor, and CanConvert(its dtype, dtype).
  /// \returns the number of bytes that were copied from the file.
  /// \error as ReadableFile::Read; some of `out` may then be overwritten.
  absl::StatusOr<int64_t> Read(int index, const Box& box, DType dtype,
                               void* out) const;
  /// As Read, but copies to the part `out_box`, of the sizes of `box`, of a
  /// dense row-major tensor of `out_sizes` at `out`.
  absl::StatusOr<int64_t> ReadInto(int index, const Box& box, DType dtype,
                                   void* out, ShapeView out_sizes,
                                   const Box& out_box) const;
  /// Reads the part `box` of tensor `index` and calls `take` for pieces of its
  /// runs.
  /// \param take receives `count` elements as stored, at any alignment and
  ///     valid during the call. They are consecutive in the tensor of
  ///     `out_sizes`, from its element `first` on.
  /// \error as ReadableFile::Read.
  absl::Status VisitRuns(int index, const Box& box, ShapeView out_sizes,
                         const Box& out_box,
                         absl::FunctionRef<void(const std::byte* data,
                                                int64_t first, int64_t count)>
                             take) const;

 private:
  SafetensorsFile() = default;
  absl::Status ParseHeader();

  std::unique_ptr<const ReadableFile> file_;
  int64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
  std::vector<int64_t> offsets_;
  absl::flat_hash_map<std::string, int> index_;
  std::map<std::string, std::string> metadata_;
};

/// Returns the beginning of a file of `tensors`, in that order: the length of
/// the header and the header. The data follow at a multiple of eight bytes. To
/// align each tensor to its elements, list tensors of wide dtypes first. The
/// metadata are the format "pt", which transformers requires.
/// \param path for messages.
/// \error kInvalidArgument for a name that is repeated or is "__metadata__", or
///     if the header exceeds the format's limit.
absl::StatusOr<std::string> SafetensorsStart(
    const std::string& path, const std::vector<TensorInfo>& tensors);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAFETENSORS_H_
