// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

// Bytes of global tensors that ranks read before they copy them: few enough to
// stay in the system's cache.
constexpr int64_t kBytesPerBatch = int64_t{256} << 20;

/// This rank's part of a tensor, and its sources.
struct Part {
  const IndexedTensor* stored;
  const TensorSpec* spec;
  Tensor local;
  Box box;
  std::vector<CellPart> cells;
  /// Hash of the cells' parts as read.
  DataFiles::Hashed hashed;
  absl::StatusOr<int64_t> bytes_copied = 0;
};

/// Returns the rank whose part `rank` replicates: itself if it is the first, -1
/// if it has no part.
/// \param first the owner of tensors without a layout.
int OwnerOf(const TensorSpec& spec, int rank, int first) {
  if (!spec.layout.has_value()) return first;
  std::optional<MeshCoordinate> at = spec.layout->mesh().CoordinateOf(rank);
  if (!at.has_value()) return -1;
  for (int axis = 0; axis < spec.layout->mesh().ndim(); ++axis) {
    if (spec.layout->state_of_axis(axis).is_replicate()) {
      (*at)[static_cast<size_t>(axis)] = 0;
    }
  }
  return spec.layout->mesh().rank_at(*at);
}

/// Returns this rank's part of a tensor; empty if the rank is off the mesh.
Box BoxOf(const Tensor& data) {
  Box box = WholeBox(data.sizes());
  if (!data.is_distributed()) return box;
  if (MeshOf(data).coordinate().has_value()) return LocalBoxOf(data);
  std::fill(box.sizes.begin(), box.sizes.end(), 0);
  return box;
}

std::string ShapesOf(const IndexedTensor& stored, const Shape& sizes) {
  return absl::StrCat("\"", stored.name, "\" has shape ",
                      ToString(stored.sizes), ", and the state's is ",
                      ToString(sizes));
}

class Loader {
 public:
  Loader(World& world, Communicator& comm, const std::string& dir,
         const LoadCheckpointOptions& options)
      : world_(world), comm_(comm), dir_(dir), options_(options) {}
  /// Reports names also if the load fails.
  ~Loader() {
    if (options_.stats != nullptr) *options_.stats = stats_;
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Reads the index, which must be the same on all ranks.
  absl::Status Open();
  const CheckpointIndex& index() const { return index_; }
  /// Adds the shapes that differ to an error of StateToFill or CheckNames,
  /// which would hide them: a model of another width may lack names too.
  absl::Status WithShapes(const absl::Status& error,
                          const nn::StateDict& state) const;

  /// Reads everything that both `state` and the checkpoint have.
  /// \param refuses_extra whether an entry that `state` lacks is an error.
  absl::Status Fill(nn::StateDict& state, bool allows_missing,
                    bool refuses_extra);

 private:
  absl::Status CheckNames(const nn::StateDict& state, bool allows_missing,
                          bool refuses_extra);
  absl::Status Fits(const IndexedTensor& stored, const TensorSpec& spec) const;
  /// Checks that the ranks that hold the tensor are in the world.
  absl::Status IsInWorld(const TensorSpec& spec) const;
  absl::StatusOr<std::vector<Part>> PlanParts(
      const DescribedState& described) const;
  /// Reads and hashes the cells of `parts`.
  absl::Status Hash(absl::Span<Part> parts) const;
  absl::Status Copy(absl::Span<Part> parts);
  absl::Status Verify(absl::Span<const Part> parts);
  absl::Status FillValues(nn::StateDict& state) const;

  World& world_;
  Communicator& comm_;
  const std::string& dir_;
  const LoadCheckpointOptions& options_;
  CheckpointIndex index_;
  std::unique_ptr<DataFiles> files_;
  LoadStats stats_;
};

absl::Status Loader::Open() {
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherOnEveryRank(
          comm_, "load: index", [&]() -> absl::StatusOr<std::string> {
            CH_ASSIGN_OR_RETURN(index_, ReadIndex(dir_));
            CH_ASSIGN_OR_RETURN(const std::string text, FormatIndex(index_));
            return HashToHex(HashText(text));
          }));
  files_ = std::make_unique<DataFiles>(dir_, index_);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i] == texts[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", comm_.world_ranks()[0], " and ",
                     comm_.world_ranks()[i], " find different checkpoints in ",
                     dir_, ": use a directory that all machines share"));
  }
  return absl::OkStatus();
}

absl::Status Loader::CheckNames(const nn::StateDict& state, bool allows_missing,
                                bool refuses_extra) {
  const std::vector<std::string> stored = index_.Names();
  std::vector<std::string> missing;
  for (const auto& [name, entry] : state.entries()) {
    if (!std::binary_search(stored.begin(), stored.end(), name)) {
      missing.push_back(name);
    }
  }
  std::vector<std::string> extra;
  for (const std::string& name : stored) {
    if (state.Find(name) == nullptr) extra.push_back(name);
  }
  stats_.missing = missing;
  stats_.unexpected = extra;
  if (!refuses_extra) extra.clear();
  if (!missing.empty() && !allows_missing) {
    return absl::NotFoundError(absl::StrCat(
        dir_, " lacks ", ListNames(missing),
        extra.empty()
            ? ""
            : absl::StrCat(
                  ", and contains entries that the state does not have: ",
                  ListNames(extra))));
  }
  if (!extra.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir_,
        " contains entries that the state does not have: ", ListNames(extra)));
  }
  return absl::OkStatus();
}

absl::Status Loader::WithShapes(const absl::Status& error,
                                const nn::StateDict& state) const {
  if (error.ok()) return error;
  std::vector<std::string> differ;
  for (const auto& [name, entry] : state.entries()) {
    const IndexedTensor* const stored = index_.Find(name);
    const Tensor* const tensor = std::get_if<Tensor>(&entry);
    if (stored == nullptr || tensor == nullptr || !tensor->defined()) continue;
    if (stored->sizes == tensor->sizes()) continue;
    differ.push_back(ShapesOf(*stored, tensor->sizes()));
  }
  if (differ.empty()) return error;
  return absl::Status(error.code(), absl::StrCat(std::string(error.message()),
                                                 "; ", ListNames(differ)));
}

absl::Status Loader::Fits(const IndexedTensor& stored,
                          const TensorSpec& spec) const {
  if (stored.sizes != spec.sizes) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir_, ": ", ShapesOf(stored, spec.sizes)));
  }
  if (stored.dtype == spec.dtype) return absl::OkStatus();
  const bool could = CanConvert(stored.dtype, spec.dtype);
  if (could && options_.convert_dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      dir_, ": \"", spec.name, "\" is ", Name(stored.dtype),
      ", and the state's is ", Name(spec.dtype),
      could ? "; set LoadCheckpointOptions::convert_dtype to convert it" : ""));
}

absl::Status Loader::IsInWorld(const TensorSpec& spec) const {
  if (!spec.layout.has_value()) return absl::OkStatus();
  std::vector<int> ranks = comm_.world_ranks();
  std::sort(ranks.begin(), ranks.end());
  for (const int rank : spec.layout->mesh().ranks()) {
    if (std::binary_search(ranks.begin(), ranks.end(), rank)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        dir_, ": \"", spec.name, "\" is on ", spec.layout->mesh().ToString(),
        ", whose rank ", rank, " is not in the world that loads it (ranks ",
        absl::StrJoin(ranks, ", "), ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Part>> Loader::PlanParts(
    const DescribedState& described) const {
  std::vector<Part> parts;
  for (size_t i = 0; i < described.tensors.size(); ++i) {
    const TensorSpec& spec = described.tensors[i];
    const IndexedTensor* stored = index_.Find(spec.name);
    if (stored == nullptr) continue;
    CH_RETURN_IF_ERROR(Fits(*stored, spec));
    CH_RETURN_IF_ERROR(IsInWorld(spec));
    if (options_.verify && !stored->hash.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          dir_,
          " has no hashes: its save did not finish, though all files may be "
          "complete; set LoadCheckpointOptions::verify = false to load it"));
    }
    Part part{.stored = stored, .spec = &spec};
    const Tensor& data = described.data[i];
    part.box = BoxOf(data);
    part.cells = PartsOf(*stored, part.box);
    if (!data.is_distributed() || MeshOf(data).coordinate().has_value()) {
      part.local = WritableLocalTensor(data, "a load of a checkpoint");
      if (!part.local.is_contiguous()) {
        return absl::FailedPreconditionError(
            absl::StrCat("\"", spec.name, "\" cannot be loaded: its memory (",
                         part.local.Describe(), ") is not contiguous"));
      }
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::Status Loader::Hash(absl::Span<Part> parts) const {
  if (world_.context().dry_run()) return absl::OkStatus();
  for (Part& part : parts) {
    if (!part.local.defined() || part.box.empty()) continue;
    CH_ASSIGN_OR_RETURN(part.hashed, files_->Hash(*part.stored, part.cells));
  }
  return absl::OkStatus();
}

absl::Status Loader::Copy(absl::Span<Part> parts) {
  for (Part& part : parts) {
    if (!part.local.defined()) continue;
    // Also if this rank's shard is empty, because all ranks count the write.
    BeginWrite("a load of a checkpoint", part.local);
    if (part.box.empty()) continue;
    if (world_.context().dry_run()) {
      part.bytes_copied = part.box.numel() * SizeOf(part.stored->dtype);
    }
    WriteFromHost(part.local, [this, &part](void* to) {
      part.bytes_copied = files_->Read(*part.stored, part.cells, part.box,
                                       part.spec->dtype, to);
    });
  }
  absl::Status done = world_.context().Synchronize();
  for (const Part& part : parts) {
    if (done.ok()) done = part.bytes_copied.status();
    stats_.bytes_read += part.bytes_copied.value_or(0);
    stats_.bytes_hashed += part.hashed.bytes;
  }
  return done;
}

absl::Status Loader::Verify(absl::Span<const Part> parts) {
  std::vector<uint64_t> mine;
  for (const Part& part : parts) mine.push_back(part.hashed.hash);
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      Gather(comm_, "load: hashes",
                             absl::StatusOr<std::string>(HashesToHex(mine))));
  if (!options_.verify || world_.context().dry_run()) return absl::OkStatus();
  const std::vector<int>& ranks = comm_.world_ranks();
  std::map<int, std::vector<uint64_t>> hashes;  // By world rank and part.
  for (size_t r = 0; r < ranks.size(); ++r) {
    CH_CHECK(HashesFromHex(all[r], hashes[ranks[r]])) << all[r];
  }
  std::vector<std::string> wrong;
  for (size_t i = 0; i < parts.size(); ++i) {
    const IndexedTensor& stored = *parts[i].stored;
    uint64_t sum = 0;
    for (const int rank : ranks) {
      const int owner = OwnerOf(*parts[i].spec, rank, ranks[0]);
      const uint64_t hash = hashes.at(rank).at(i);
      if (owner == rank) sum += hash;
      if (owner >= 0 && hash != hashes.at(owner).at(i)) {
        wrong.push_back(absl::StrCat("\"", stored.name, "\" (rank ", rank,
                                     " read different values than rank ", owner,
                                     ")"));
      }
    }
    if (sum == *stored.hash) continue;
    wrong.push_back(absl::StrCat("\"", stored.name, "\" (hash ", HashToHex(sum),
                                 ", saved as ", HashToHex(*stored.hash), ")"));
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(dir_, " differs from what was saved: ", ListNames(wrong)));
}

absl::Status Loader::FillValues(nn::StateDict& state) const {
  for (const auto& [name, value] : index_.values) {
    nn::StateValue* entry = state.Find(name);
    if (entry == nullptr) continue;
    nn::StateValue filled =
        std::visit([](const auto& v) { return nn::StateValue(v); }, value);
    if (filled.index() != entry->index()) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir_, ": the value \"", name,
                       "\" has a different type in the state"));
    }
    *entry = std::move(filled);
  }
  for (const auto& [name, entry] : state.entries()) {
    if (std::holds_alternative<Tensor>(entry)) continue;
    if (index_.Find(name) == nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        dir_, ": \"", name, "\" is a tensor, but a value in the state"));
  }
  return absl::OkStatus();
}

absl::Status Loader::Fill(nn::StateDict& state, bool allows_missing,
                          bool refuses_extra) {
  // Values are not compared, because they will be replaced.
  CH_ASSIGN_OR_RETURN(
      const DescribedState described,
      Agree(comm_, absl::StrCat("load from ", dir_), Describe(state),
            /*with_values=*/false));
  nn::StateDict with_values = state;
  absl::Status fits =
      WithShapes(CheckNames(state, allows_missing, refuses_extra), state);
  if (fits.ok()) fits = FillValues(with_values);
  std::vector<Part> parts;
  if (fits.ok()) {
    absl::StatusOr<std::vector<Part>> planned = PlanParts(described);
    fits = planned.status();
    if (planned.ok()) parts = *std::move(planned);
  }
  CH_RETURN_IF_ERROR(OnEveryRank(comm_, "load: files", [&]() -> absl::Status {
    CH_RETURN_IF_ERROR(fits);
    for (const Part& part : parts) {
      CH_RETURN_IF_ERROR(files_->Open(*part.stored, part.cells));
    }
    return absl::OkStatus();
  }));
  stats_.files_opened = files_->opened();
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin;
    for (int64_t bytes = 0; end < parts.size() && bytes < kBytesPerBatch;
         ++end) {
      bytes += parts[end].stored->bytes();
    }
    const absl::Span<Part> batch =
        absl::MakeSpan(parts).subspan(begin, end - begin);
    // Background threads wait for the disk while the ranks' threads exchange
    // messages. Afterwards the data are in the system's cache.
    CH_RETURN_IF_ERROR(
        OnEveryRank(comm_, "load: read", [&] { return Hash(batch); }));
    CH_RETURN_IF_ERROR(Gather(comm_, "load: copy", Copy(batch)));
    CH_RETURN_IF_ERROR(Verify(batch));
    begin = end;
  }
  state = std::move(with_values);
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadCheckpoint(World& world, nn::StateDict& state,
                            const std::string& dir,
                            const LoadCheckpointOptions& options) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  Loader loader(world, *comm, dir, options);
  CH_RETURN_IF_ERROR(loader.Open());
  return loader.Fill(state, /*allows_missing=*/options.partial,
                     /*refuses_extra=*/!options.partial);
}

absl::Status LoadCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const LoadCheckpointOptions& options) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  Loader loader(world, *comm, dir, options);
  CH_RETURN_IF_ERROR(loader.Open());
  absl::StatusOr<nn::StateDict> state =
      stateful.StateToFill(loader.index().Names());
  absl::Status fits = state.status();
  if (absl::IsInvalidArgument(fits)) {
    fits = absl::InvalidArgumentError(absl::StrCat(dir, ": ", fits.message()));
    const absl::StatusOr<nn::StateDict> own = stateful.State();
    if (own.ok()) fits = loader.WithShapes(fits, *own);
  }
  CH_RETURN_IF_ERROR(Gather(*comm, "load: state to fill", fits));
  CH_RETURN_IF_ERROR(loader.Fill(*state, /*allows_missing=*/false,
                                 /*refuses_extra=*/false));
  return Gather(*comm, "load: restore", stateful.Restore(*state));
}

}  // namespace crosshatch::checkpoint
