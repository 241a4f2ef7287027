// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/offline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch::checkpoint {
namespace {

/// A checkpoint that is open for streaming.
struct Source {
  CheckpointIndex index;
  std::unique_ptr<DataFiles> files;

  static absl::StatusOr<std::unique_ptr<Source>> Open(const std::string& dir) {
    auto source = std::make_unique<Source>();
    CH_ASSIGN_OR_RETURN(source->index, ReadIndex(dir));
    source->files = std::make_unique<DataFiles>(dir, source->index);
    return source;
  }

  absl::Status OpenAll(const IndexedTensor& tensor) {
    return files->Open(tensor, PartsOf(tensor, WholeBox(tensor.sizes)));
  }

  /// Reads `box` in blocks, passes each to `write`, and returns the hash of the
  /// box.
  absl::StatusOr<uint64_t> Stream(
      const IndexedTensor& tensor, const Box& box,
      absl::FunctionRef<absl::Status(const void* data, int64_t bytes)> write) {
    std::vector<std::byte> buffer;
    uint64_t hash = 0;
    const int64_t element = SizeOf(tensor.dtype);
    CH_RETURN_IF_ERROR(ForEachBlock(
        box, element, kBlockBytes, [&](const Box& block) -> absl::Status {
          const int64_t bytes = block.numel() * element;
          buffer.resize(static_cast<size_t>(bytes));
          const std::vector<CellPart> parts = PartsOf(tensor, block);
          CH_ASSIGN_OR_RETURN(const DataFiles::Hashed hashed,
                              files->Hash(tensor, parts));
          hash += hashed.hash;
          CH_RETURN_IF_ERROR(
              files->Read(tensor, parts, block, tensor.dtype, buffer.data())
                  .status());
          return write(buffer.data(), bytes);
        }));
    return hash;
  }
};

std::string ShapeText(const IndexedTensor& tensor) {
  return absl::StrCat(Name(tensor.dtype), ToString(tensor.sizes));
}

absl::Status CheckHash(const std::string& dir, const IndexedTensor& tensor,
                       uint64_t hash) {
  if (!tensor.hash.has_value() || *tensor.hash == hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      dir, ": \"", tensor.name, "\" differs from what was saved (hash ",
      HashToHex(hash), ", saved as ", HashToHex(*tensor.hash), ")"));
}

/// Returns how two tensors of equal sizes differ; empty if they do not.
absl::StatusOr<std::string> DiffElements(Source& a, const IndexedTensor& x,
                                         Source& b, const IndexedTensor& y) {
  CH_RETURN_IF_ERROR(a.OpenAll(x));
  CH_RETURN_IF_ERROR(b.OpenAll(y));
  const DType dtype = IsFloatingPoint(x.dtype) ? kFloat64 : x.dtype;
  const int64_t element = SizeOf(dtype);
  std::vector<std::byte> of_a;
  std::vector<std::byte> of_b;
  int64_t different = 0;
  double greatest = 0;
  Shape where;
  CH_RETURN_IF_ERROR(ForEachBlock(
      WholeBox(x.sizes), element, kBlockBytes,
      [&](const Box& block) -> absl::Status {
        of_a.resize(static_cast<size_t>(block.numel() * element));
        of_b.resize(of_a.size());
        for (const auto& [source, tensor, out] :
             {std::tuple(&a, &x, &of_a), std::tuple(&b, &y, &of_b)}) {
          const std::vector<CellPart> parts = PartsOf(*tensor, block);
          CH_RETURN_IF_ERROR(
              source->files->Read(*tensor, parts, block, dtype, out->data())
                  .status());
        }
        for (int64_t i = 0; i < block.numel(); ++i) {
          const std::byte* p = of_a.data() + i * element;
          const std::byte* q = of_b.data() + i * element;
          if (std::memcmp(p, q, static_cast<size_t>(element)) == 0) continue;
          double distance = 0;
          if (dtype == kFloat64) {
            double u = 0;
            double v = 0;
            std::memcpy(&u, p, sizeof(u));
            std::memcpy(&v, q, sizeof(v));
            distance = std::abs(u - v);
          }
          if (++different > 1 && !(distance > greatest)) continue;
          greatest = distance;
          where = block.offsets;
          int64_t rest = i;
          for (size_t d = where.size(); d-- > 0;) {
            where[d] += rest % block.sizes[d];
            rest /= block.sizes[d];
          }
        }
        return absl::OkStatus();
      }));
  if (different == 0) return std::string();
  return absl::StrCat(
      different, " of ", NumElements(x.sizes), " elements differ, ",
      dtype == kFloat64 ? absl::StrFormat("most by %.6g, at ", greatest)
                        : "the first at ",
      ToString(where));
}

struct Converted {
  TensorInfo info;
  /// Concatenated along dim 0.
  std::vector<const IndexedTensor*> parts;
};

/// Returns the tensors to write, wide dtypes first, so that each is aligned to
/// its elements. Opens their files.
absl::StatusOr<std::vector<Converted>> ChooseTensors(
    Source& source, const ConvertOptions& options) {
  std::vector<const IndexedTensor*> tensors;
  std::vector<NamedWeight> weights;
  for (const IndexedTensor& tensor : source.index.tensors) {
    if (!absl::StartsWith(tensor.name, options.prefix)) continue;
    CH_RETURN_IF_ERROR(source.OpenAll(tensor));
    tensors.push_back(&tensor);
    weights.push_back({tensor.name.substr(options.prefix.size()), tensor.dtype,
                       tensor.sizes});
  }
  const WeightNames renamed = {
      .rules = {{"*", absl::StrCat(options.new_prefix, "*")}}};
  CH_ASSIGN_OR_RETURN(const std::vector<Merged<size_t>> merged,
                      MergeWeights(weights, options.names.value_or(renamed)));
  std::vector<Converted> chosen;
  for (const Merged<size_t>& from : merged) {
    const IndexedTensor& first = *tensors[from.parts[0]];
    if (from.transposed) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", first.name, "\" would have to be transposed to be \"",
          from.name, "\", which needs the model; use SaveWeights"));
    }
    Converted& to = chosen.emplace_back(
        Converted{{from.name, first.dtype, from.sizes}, {}});
    for (const size_t part : from.parts) to.parts.push_back(tensors[part]);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const Converted& a, const Converted& b) {
                     return SizeOf(a.info.dtype) > SizeOf(b.info.dtype);
                   });
  return chosen;
}

}  // namespace

absl::StatusOr<std::string> Inspect(const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const CheckpointIndex index, ReadIndex(dir));
  std::string text =
      absl::StrCat(index.tensors.size(), " tensors, ", index.bytes(),
                   " bytes in ", index.files.size(), " files of ", index.ranks,
                   " ranks; ", index.values.size(), " values\n");
  for (const auto& [name, value] : index.values) {
    absl::StrAppend(&text, name, " = ", ValueText(value), "\n");
  }
  for (const IndexedTensor& tensor : index.tensors) {
    absl::StrAppend(
        &text, tensor.name, ": ", ShapeText(tensor), ", ", tensor.num_cells(),
        tensor.num_cells() == 1 ? " cell" : " cells",
        tensor.hash.has_value() ? absl::StrCat(", ", HashToHex(*tensor.hash))
                                : ", no hash",
        "\n");
  }
  return text;
}

absl::Status CheckComplete(const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, Source::Open(dir));
  for (const IndexedTensor& tensor : source->index.tensors) {
    CH_RETURN_IF_ERROR(source->OpenAll(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Verify(const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, Source::Open(dir));
  const CheckpointIndex& index = source->index;
  std::set<std::string> wrong;
  bool has_hashes = true;
  for (const IndexedTensor& tensor : index.tensors) {
    const absl::Status opened = source->OpenAll(tensor);
    if (!opened.ok()) {
      wrong.insert(std::string(opened.message()));
      continue;
    }
    has_hashes = has_hashes && tensor.hash.has_value();
    uint64_t hash = 0;
    CH_RETURN_IF_ERROR(ForEachBlock(
        WholeBox(tensor.sizes), SizeOf(tensor.dtype), kBlockBytes,
        [&](const Box& block) -> absl::Status {
          const std::vector<CellPart> parts = PartsOf(tensor, block);
          CH_ASSIGN_OR_RETURN(const DataFiles::Hashed hashed,
                              source->files->Hash(tensor, parts));
          hash += hashed.hash;
          return absl::OkStatus();
        }));
    const absl::Status same = CheckHash(dir, tensor, hash);
    if (!same.ok()) wrong.insert(std::string(same.message()));
  }
  if (!wrong.empty()) return absl::DataLossError(absl::StrJoin(wrong, "\n"));
  if (!has_hashes) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir,
                     " is complete, but has no hashes to verify its contents: "
                     "its save did not finish"));
  }
  return absl::StrCat(dir, " is as saved: ", index.tensors.size(), " tensors, ",
                      index.bytes(), " bytes\n");
}

absl::StatusOr<std::string> Diff(const std::string& a, const std::string& b) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<Source> x, Source::Open(a));
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<Source> y, Source::Open(b));
  std::set<std::string> names;
  for (const std::string& name : x->index.Names()) names.insert(name);
  for (const std::string& name : y->index.Names()) names.insert(name);
  std::string text;
  for (const std::string& name : names) {
    const auto kind = [&](const CheckpointIndex& index) -> std::string {
      if (const IndexedTensor* tensor = index.Find(name)) {
        return ShapeText(*tensor);
      }
      const auto value = index.values.find(name);
      return value == index.values.end() ? "missing" : ValueText(value->second);
    };
    const IndexedTensor* p = x->index.Find(name);
    const IndexedTensor* q = y->index.Find(name);
    if (p == nullptr || q == nullptr || ShapeText(*p) != ShapeText(*q)) {
      if (kind(x->index) != kind(y->index)) {
        absl::StrAppend(&text, name, ": ", kind(x->index), " against ",
                        kind(y->index), "\n");
      }
      continue;
    }
    CH_ASSIGN_OR_RETURN(const std::string difference,
                        DiffElements(*x, *p, *y, *q));
    if (!difference.empty()) {
      absl::StrAppend(&text, name, ": ", difference, "\n");
    }
  }
  return text;
}

absl::Status Reshard(const std::string& from, const std::string& to, int ranks,
                     FileSystem& files) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks is ", ranks, ", must be at least 1"));
  }
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, Source::Open(from));
  CH_ASSIGN_OR_RETURN(const MeshLayout mesh,
                      MeshLayout::Create({{"ranks", ranks}}));
  std::vector<TensorSpec> specs;
  for (const IndexedTensor& tensor : source->index.tensors) {
    CH_RETURN_IF_ERROR(source->OpenAll(tensor));
    TensorSpec spec{tensor.name, tensor.dtype, tensor.sizes};
    if (!tensor.sizes.empty()) {
      spec.layout =
          Layout::Replicated(mesh, static_cast<int>(tensor.sizes.size()))
              .WithShard(0, 0);
    }
    specs.push_back(std::move(spec));
  }
  CH_ASSIGN_OR_RETURN(SavePlan plan, PlanSave(specs, ranks));
  plan.index.values = source->index.values;
  CH_ASSIGN_OR_RETURN(
      const std::unique_ptr<NewDirectory> target,
      NewDirectory::Create(to, /*overwrite=*/false, files, IsCheckpointFile));
  std::vector<uint64_t> hashes(plan.index.tensors.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<PlannedCell>& cells =
        plan.by_rank[static_cast<size_t>(rank)];
    if (cells.empty()) continue;
    const std::string& name =
        plan.index.files[static_cast<size_t>(plan.FileOf(rank))];
    target->Add(name);
    CH_ASSIGN_OR_RETURN(WeightFilesPlan file,
                        WeightFilesPlan::OfOneFile(name, plan.InfosOf(rank)));
    WeightFiles writer(target->partial_path(), std::move(file), files);
    CH_RETURN_IF_ERROR(writer.Create());
    for (const PlannedCell& cell : cells) {
      const auto i = static_cast<size_t>(cell.tensor);
      const IndexedTensor& tensor = plan.index.tensors[i];
      CH_ASSIGN_OR_RETURN(
          const uint64_t hash,
          source->Stream(source->index.tensors[i], tensor.CellBox(cell.cell),
                         [&](const void* data, int64_t bytes) {
                           return writer.Append(data, bytes);
                         }));
      hashes[i] += hash;
    }
    CH_RETURN_IF_ERROR(writer.Sync());
    CH_RETURN_IF_ERROR(writer.GiveNames());
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckHash(from, source->index.tensors[i], hashes[i]));
    plan.index.tensors[i].hash = hashes[i];
  }
  CH_ASSIGN_OR_RETURN(const std::string text, FormatIndex(plan.index));
  CH_RETURN_IF_ERROR(WriteFile(target->Add(kIndexFile), text, files));
  return target->Commit();
}

absl::Status ConvertToHuggingFace(const std::string& from,
                                  const std::string& to,
                                  const ConvertOptions& options,
                                  FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, Source::Open(from));
  CH_ASSIGN_OR_RETURN(const std::vector<Converted> chosen,
                      ChooseTensors(*source, options));
  if (chosen.empty()) {
    return absl::NotFoundError(
        absl::StrCat(from, " has no tensor whose name begins with \"",
                     options.prefix, "\""));
  }
  std::vector<TensorInfo> infos;
  for (const Converted& tensor : chosen) infos.push_back(tensor.info);
  CH_ASSIGN_OR_RETURN(
      const WeightFilesPlan plan,
      WeightFilesPlan::Create(std::move(infos), options.max_file_bytes));
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<NewDirectory> target,
                      NewDirectory::Create(to, /*overwrite=*/false, files));
  for (const WeightFilesPlan::File& file : plan.files()) target->Add(file.name);
  WeightFiles writer(target->partial_path(), plan, files);
  CH_RETURN_IF_ERROR(writer.Create());
  for (const Converted& tensor : chosen) {
    for (const IndexedTensor* part : tensor.parts) {
      CH_ASSIGN_OR_RETURN(const uint64_t hash,
                          source->Stream(*part, WholeBox(part->sizes),
                                         [&](const void* data, int64_t bytes) {
                                           return writer.Append(data, bytes);
                                         }));
      CH_RETURN_IF_ERROR(CheckHash(from, *part, hash));
    }
  }
  CH_RETURN_IF_ERROR(writer.Sync());
  CH_RETURN_IF_ERROR(writer.GiveNames());
  if (const std::string index = plan.IndexText(); !index.empty()) {
    CH_RETURN_IF_ERROR(
        WriteFile(target->Add("model.safetensors.index.json"), index, files));
  }
  return target->Commit();
}

}  // namespace crosshatch::checkpoint
