// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/nn/full_state.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

DType StoredDType(const MergedTensor& tensor, const SaveOptions& options) {
  const DType dtype = tensor.parts[0].parameter->data().dtype();
  return IsFloatingPoint(dtype) ? options.dtype.value_or(dtype) : dtype;
}

/// Elements of one tensor that this rank writes.
struct Piece {
  const MergedTensor* tensor;
  WeightFilesPlan::Place place;
  DType dtype;  ///< As written.
  Tensor data;  ///< Dense, of the box's sizes, in the parameter's dtype.
  Box box;      ///< In the stored tensor or its transpose.

  /// Returns the elements as written: dense, row-major.
  Tensor ToWrite() const {
    const Tensor converted = ToDType(data, dtype);
    return tensor->transposed ? Contiguous(Transpose(converted, 0, 1))
                              : converted;
  }
  /// Returns the size of ToWrite and a host view of it; 0 if the host writes
  /// the elements in place.
  int64_t BytesInHand() const {
    if (data.dtype() == dtype && !tensor->transposed &&
        IsHostAddressable(data)) {
      return 0;
    }
    return data.numel() * std::max(SizeOf(data.dtype()), SizeOf(dtype));
  }
  absl::Status Write(const void* elements, WeightFiles& files) const {
    Box stored = box;
    if (tensor->transposed) {
      std::reverse(stored.offsets.begin(), stored.offsets.end());
      std::reverse(stored.sizes.begin(), stored.sizes.end());
    }
    const auto* const from = static_cast<const std::byte*>(elements);
    const int64_t size = SizeOf(dtype);
    absl::Status status;
    ForEachRunOfBoth(
        tensor->StoredSizes(), stored, stored.sizes, WholeBox(stored.sizes),
        [&](int64_t first, int64_t own_first, int64_t count) {
          if (!status.ok()) return;
          status = files.Write(place.file, place.offset + first * size,
                               from + own_first * size, count * size);
        });
    return status;
  }
};

struct Source {
  const MergedTensor* tensor;
  int64_t row;  ///< Row of the merged tensor at which it begins.
};

/// Returns the destinations by parameter name.
/// \param tensors must outlive the result.
std::map<std::string, Source> SourcesOf(
    absl::Span<const MergedTensor> tensors) {
  std::map<std::string, Source> sources;
  for (const MergedTensor& tensor : tensors) {
    int64_t row = 0;
    for (const nn::NamedParameter& part : tensor.parts) {
      sources[part.name] = {&tensor, row};
      const Tensor& of_part = part.parameter->data();
      if (of_part.ndim() > 0) row += of_part.size(0);
    }
  }
  return sources;
}

struct Contents {
  std::vector<MergedTensor> tensors;
  WeightFilesPlan files;
};

absl::StatusOr<Contents> PlanContents(nn::Module& model,
                                      const WeightNames& names,
                                      const SaveOptions& options) {
  if (options.dtype.has_value() && !IsFloatingPoint(*options.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights cannot be saved as ", Name(*options.dtype),
                     ": SaveOptions::dtype is a floating-point type"));
  }
  if (options.max_file_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("SaveOptions::max_file_bytes must not be negative: ",
                     options.max_file_bytes));
  }
  Contents contents;
  CH_ASSIGN_OR_RETURN(contents.tensors,
                      MergeByName(nn::NamedState(model), names));
  std::vector<TensorInfo> infos;
  for (const MergedTensor& tensor : contents.tensors) {
    infos.push_back(
        {tensor.name, StoredDType(tensor, options), tensor.StoredSizes()});
  }
  CH_ASSIGN_OR_RETURN(
      contents.files,
      WeightFilesPlan::Create(std::move(infos), options.max_file_bytes));
  return contents;
}

/// Adds the place of each parameter in the files to `described`. Each rank
/// computes the places from its own options and names; ranks with other places
/// would overwrite each other's data.
void AddPlaces(const Contents& contents, const SaveOptions& options,
               DescribedState& described) {
  for (const auto& [name, source] : SourcesOf(contents.tensors)) {
    const MergedTensor& tensor = *source.tensor;
    const WeightFilesPlan::Place place = contents.files.PlaceOf(tensor.name);
    described.values[absl::StrCat("location of ", name)] = absl::StrCat(
        Name(StoredDType(tensor, options)), "[",
        absl::StrJoin(tensor.StoredSizes(), ", "), "] ", tensor.name, " from ",
        tensor.transposed ? "column " : "row ", source.row, ", at byte ",
        place.offset, " of ", contents.files.files()[place.file].name);
  }
}

/// Returns the pieces of this rank's cells of `plan` in the order of the files,
/// in rounds of at most kMaxPieceBytes.
std::vector<std::vector<Piece>> CutPieces(const Contents& contents,
                                          const SaveOptions& options,
                                          const SavePlan& plan,
                                          absl::Span<const Tensor> data,
                                          int rank) {
  const std::map<std::string, Source> sources = SourcesOf(contents.tensors);
  std::vector<Piece> pieces;
  CutCells(
      plan, rank, data,
      [&](const IndexedTensor& parameter) {
        const Source& source = sources.at(parameter.name);
        return std::max(SizeOf(parameter.dtype),
                        SizeOf(StoredDType(*source.tensor, options)));
      },
      [&](size_t cell, Box box, Tensor part) {
        const auto t = static_cast<size_t>(
            plan.by_rank[static_cast<size_t>(rank)][cell].tensor);
        const Source& source = sources.at(plan.index.tensors[t].name);
        if (box.ndim() > 0) box.offsets[0] += source.row;
        pieces.push_back({source.tensor,
                          contents.files.PlaceOf(source.tensor->name),
                          StoredDType(*source.tensor, options), std::move(part),
                          std::move(box)});
      });
  absl::c_stable_sort(pieces, [](const Piece& a, const Piece& b) {
    return std::pair(a.place.file, a.place.offset) <
           std::pair(b.place.file, b.place.offset);
  });
  std::vector<std::vector<Piece>> rounds;
  int64_t in_round = 0;
  for (Piece& piece : pieces) {
    const int64_t bytes = piece.BytesInHand();
    if (rounds.empty() || in_round + bytes > kMaxPieceBytes) {
      rounds.emplace_back();
      in_round = 0;
    }
    in_round += bytes;
    rounds.back().push_back(std::move(piece));
  }
  return rounds;
}

class Save {
 public:
  Save(World& world, Communicator& comm, const std::string& dir,
       const SaveOptions& options)
      : world_(world), comm_(comm), dir_(dir), options_(options) {}

  /// All ranks: creates the directory and its files.
  absl::Status Open(const WeightFilesPlan& plan, const std::string& config);
  absl::Status Write(absl::Span<const std::vector<Piece>> rounds);
  /// All ranks, after all have written: commits the directory.
  absl::Status Finish();

 private:
  absl::Status OpenOnFirst(const WeightFilesPlan& plan,
                           const std::string& config);
  /// Removes incomplete files before the ranks learn of the error, because a
  /// program may save again at once.
  absl::Status GiveUp(const absl::Status& why);

  World& world_;
  Communicator& comm_;
  const std::string& dir_;
  const SaveOptions& options_;
  /// First rank only. Removes the files unless it was finished.
  std::unique_ptr<NewDirectory> directory_;
  std::unique_ptr<WeightFiles> weights_;
};

absl::Status Save::OpenOnFirst(const WeightFilesPlan& plan,
                               const std::string& config) {
  FileSystem& files = *options_.file_system;
  CH_ASSIGN_OR_RETURN(
      directory_,
      options_.use_fallback_directory
          ? NewDirectory::CreateOrFallback(dir_, options_.overwrite, files)
          : NewDirectory::Create(dir_, options_.overwrite, files));
  // Writes small files first, so that a full disk is detected before the
  // weights are complete.
  CH_RETURN_IF_ERROR(WriteFile(directory_->Add("config.json"), config, files));
  const std::string index = plan.IndexText();
  if (!index.empty()) {
    CH_RETURN_IF_ERROR(WriteFile(
        directory_->Add("model.safetensors.index.json"), index, files));
  }
  for (const WeightFilesPlan::File& file : plan.files()) {
    directory_->Add(file.name);
  }
  weights_ =
      std::make_unique<WeightFiles>(directory_->partial_path(), plan, files);
  return weights_->Create();
}

absl::Status Save::Open(const WeightFilesPlan& plan,
                        const std::string& config) {
  CH_ASSIGN_OR_RETURN(const std::string directory,
                      TextOfFirstRank(comm_, "save: open",
                                      [&]() -> absl::StatusOr<std::string> {
                                        const absl::Status opened =
                                            OpenOnFirst(plan, config);
                                        if (opened.ok())
                                          return directory_->partial_path();
                                        weights_.reset();
                                        directory_.reset();
                                        return opened;
                                      }));
  if (comm_.rank() != 0) {
    weights_ =
        std::make_unique<WeightFiles>(directory, plan, *options_.file_system);
  }
  return absl::OkStatus();
}

absl::Status Save::GiveUp(const absl::Status& why) {
  if (comm_.rank() != 0) weights_.reset();
  OnFirstRank(comm_, "save: give up", [&] {
    weights_.reset();
    directory_.reset();
    return absl::OkStatus();
  }).IgnoreError();
  return why;
}

absl::Status Save::Write(absl::Span<const std::vector<Piece>> rounds) {
  CH_ASSIGN_OR_RETURN(const size_t most,
                      LargestCount(comm_, "save: rounds", rounds.size()));
  const NoGrad no_grad;
  for (size_t round = 0; round < most; ++round) {
    const absl::Span<const Piece> pieces =
        round < rounds.size() ? absl::MakeConstSpan(rounds[round])
                              : absl::Span<const Piece>();
    std::vector<HostView> views;
    views.reserve(pieces.size());
    for (const Piece& piece : pieces) views.emplace_back(piece.ToWrite());
    const absl::Status ready = world_.context().Synchronize();
    const absl::Status written =
        OnEveryRank(comm_, "save: write", [&]() -> absl::Status {
          CH_RETURN_IF_ERROR(ready);
          for (size_t i = 0; i < pieces.size(); ++i) {
            CH_RETURN_IF_ERROR(pieces[i].Write(views[i].data(), *weights_));
          }
          return absl::OkStatus();
        });
    if (!written.ok()) return GiveUp(written);
  }
  return absl::OkStatus();
}

absl::Status Save::Finish() {
  // All weights are written and stay, whatever happens next.
  if (directory_ != nullptr) directory_->Keep();
  const absl::Status flushed =
      OnEveryRank(comm_, "save: flush", [&] { return weights_->Sync(); });
  return OnFirstRank(comm_, "save: finish", [&] {
    absl::Status status = flushed;
    if (status.ok()) status = weights_->GiveNames();
    return status.ok() ? directory_->Commit() : directory_->Explain(status);
  });
}

}  // namespace

absl::Status SaveWeights(World& world, nn::Module& model,
                         const std::string& dir, const WeightNames& names,
                         const std::string& config,
                         const SaveOptions& options) {
  RankContext& context = world.context();
  if (context.device().is_meta()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a dry run has no weights to save to ", dir));
  }
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  CH_RETURN_IF_ERROR(context.status());
  const std::string label = absl::StrCat("save to ", dir);
  // All ranks share the error of one, because they would wait for it.
  const absl::StatusOr<Contents> contents = PlanContents(model, names, options);
  const absl::StatusOr<nn::StateDict> state = nn::ModuleState(model).State();
  absl::StatusOr<DescribedState> mine = DescribedState();
  if (!contents.ok()) {
    mine = contents.status();
  } else if (!state.ok()) {
    mine = state.status();
  } else {
    mine = Describe(*state);
    if (mine.ok()) AddPlaces(*contents, options, *mine);
  }
  CH_ASSIGN_OR_RETURN(const DescribedState described,
                      Agree(*comm, label, mine, /*with_values=*/true));
  CH_RETURN_IF_ERROR(nn::CheckCopies(*comm, label, *state));
  CH_ASSIGN_OR_RETURN(const SavePlan plan,
                      PlanSave(described.tensors, world.AllRanks()));
  Save save(world, *comm, dir, options);
  CH_RETURN_IF_ERROR(save.Open(contents->files, config));
  CH_RETURN_IF_ERROR(save.Write(
      CutPieces(*contents, options, plan, described.data, world.rank())));
  return save.Finish();
}

}  // namespace crosshatch::checkpoint
