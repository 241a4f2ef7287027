// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAFETENSORS_H_
#define CROSSHATCH_CHECKPOINT_SAFETENSORS_H_

/// \file
/// The safetensors format, read strictly and written in one pass.
///
/// A file is eight bytes with the length of the header (little-endian), the
/// header, and the data. The header is a JSON object that gives each tensor's
/// dtype, shape and place:
///
///     {"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
///      "__metadata__": {"format": "pt"}}
///
/// Offsets count from the start of the data; tensors are row-major and fill the
/// data without gap or overlap.

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
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/dtensor/box.h"
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

/// "F32", "BF16", ...: the format's name of a dtype.
const char* SafetensorsName(DType dtype);
/// The dtype of that name; nullopt for one that DType has not.
std::optional<DType> DTypeOfSafetensors(const std::string& name);

/// Bytes of a tensor of `sizes`, none negative; nullopt where that overflows.
std::optional<int64_t> CheckedBytes(ShapeView sizes, DType dtype);

/// Whether values of `from` can be read into memory of `to`: equal types, or
/// both of floating point.
bool CanConvert(DType from, DType to);

/// A file open for reading. Immutable; may be shared between threads.
class SafetensorsFile {
 public:
  /// Opens the file and checks all of its header: what Open accepts can be read
  /// as long as the file stays as it is. Dtypes other than those of DType are
  /// refused.
  /// \error what the system said about `path`; kDataLoss, naming the file and
  ///     the tensor, for a truncated or corrupt one.
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(
      const std::string& path);

  const std::string& path() const { return file_->path(); }
  /// In the order of their data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }

  /// Index in tensors(), or -1.
  int Find(const std::string& name) const;

  /// Copies the part `box` of tensor `index`, dense and row-major, to `out`,
  /// converted to `dtype`. Reads that part alone, and what lies between its
  /// runs where that is little.
  /// \pre the box lies in the tensor, and CanConvert(its dtype, dtype)
  /// \returns the bytes of the file that were copied, as they were counted
  /// \error as ReadableFile::Read; then some of `out` may have been filled
  absl::StatusOr<int64_t> Read(int index, const Box& box, DType dtype,
                               void* out) const;
  /// As Read, to the part `out_box`, of the sizes of `box`, of a dense
  /// row-major tensor of `out_sizes` at `out`.
  absl::StatusOr<int64_t> ReadInto(int index, const Box& box, DType dtype,
                                   void* out, ShapeView out_sizes,
                                   const Box& out_box) const;
  /// Reads the part `box` of tensor `index`, as ReadInto does, and gives it to
  /// `take` in pieces of runs, as they lie in the file, at any address, for the
  /// time of the call: `count` elements that follow one another also in the
  /// tensor of `out_sizes`, from element `first` of it on.
  /// \error as ReadableFile::Read
  absl::Status VisitRuns(int index, const Box& box, ShapeView out_sizes,
                         const Box& out_box,
                         absl::FunctionRef<void(const std::byte* data,
                                                int64_t first, int64_t count)>
                             take) const;

 private:
  SafetensorsFile() = default;
  absl::Status ParseHeader();

  std::unique_ptr<const ReadableFile> file_;
  /// Where the data begin in the file.
  int64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
  std::vector<int64_t> offsets_;
  absl::flat_hash_map<std::string, int> index_;
  std::map<std::string, std::string> metadata_;
};

/// What a file of `tensors`, in that order, begins with: the length of the
/// header and the header. The data follow, at a multiple of eight bytes; list
/// tensors of wide dtypes first to have each aligned to its element.
/// \param path for messages
/// \error kInvalidArgument for a name that appears twice or is "__metadata__",
///     and for a header that is longer than the format allows.
absl::StatusOr<std::string> SafetensorsStart(
    const std::string& path, const std::vector<TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata);

/// Writes a file one tensor at a time, in an order announced up front. The file
/// appears under its name when Finish succeeds; before, there is nothing. Where
/// Finish fails, its error says where the bytes lie (AtomicFile).
class SafetensorsWriter {
 public:
  /// Writes the start (SafetensorsStart).
  /// \param files outlives the writer
  /// \error as SafetensorsStart; what the system said.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<TensorInfo> tensors,
      const std::map<std::string, std::string>& metadata,
      FileSystem& files = FileSystem::Real());

  /// Writes the next tensor, which must be `name`: all of its elements,
  /// row-major, in its dtype.
  absl::Status Write(const std::string& name, const void* data);
  /// The next `bytes` of the next tensor that has any, which must be `name`,
  /// for one that is written in parts. Does nothing for 0 bytes.
  absl::Status WritePart(const std::string& name, const void* data,
                         int64_t bytes);
  /// Of elements, that were written so far.
  int64_t bytes_written() const { return bytes_written_; }
  /// Whether nothing is left to write.
  bool IsComplete() const;
  /// Call once, after all tensors.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::unique_ptr<AtomicFile> file,
                    std::vector<TensorInfo> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  std::unique_ptr<AtomicFile> file_;
  std::vector<TensorInfo> tensors_;
  size_t next_ = 0;
  int64_t written_ = 0;  ///< Of that tensor.
  int64_t bytes_written_ = 0;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAFETENSORS_H_
