// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/load_plan.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

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
