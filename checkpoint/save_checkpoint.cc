// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/full_state.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

/// Returns the cell that this rank writes: its local tensor of `data`, dense.
Tensor CellOf(const Tensor& data, const Box& box) {
  const NoGrad no_grad;
  Tensor local = LocalTensor(data);
  CH_CHECK(local.sizes() == box.sizes)
      << local.Describe() << " is not the shard " << ToString(box);
  return local.is_contiguous() ? local : Contiguous(local);
}

/// Writes and hashes the elements of `box`, a few rows at a time, so that
/// hashed rows are still in the cache when they are written.
absl::StatusOr<uint64_t> WriteBox(const IndexedTensor& tensor, const Box& box,
                                  const void* data, WeightFiles& writer) {
  constexpr int64_t kBytes = 256 * 1024;
  const int64_t element = SizeOf(tensor.dtype);
  const int64_t rows = box.ndim() == 0 ? 1 : box.sizes[0];
  const int64_t row_bytes = rows == 0 ? 0 : box.numel() / rows * element;
  const int64_t most =
      row_bytes == 0 ? rows : std::max<int64_t>(1, kBytes / row_bytes);
  const auto* next = static_cast<const std::byte*>(data);
  uint64_t hash = 0;
  for (int64_t row = 0; row < rows; row += most) {
    Box part = box;
    if (box.ndim() > 0) {
      part.offsets[0] += row;
      part.sizes[0] = std::min(most, rows - row);
    }
    hash += HashBox(next, element, tensor.sizes, part);
    const int64_t bytes = part.numel() * element;
    CH_RETURN_IF_ERROR(writer.Append(next, bytes));
    next += bytes;
  }
  return hash;
}

/// What a world saves.
struct Planned {
  SavePlan plan;
  /// This rank's tensor for each tensor of the plan; undefined if other ranks
  /// have it.
  std::vector<Tensor> data;
};

absl::StatusOr<DescribedState> DescribeIfOk(
    const absl::StatusOr<nn::StateDict>& state) {
  CH_RETURN_IF_ERROR(state.status());
  return Describe(*state);
}

absl::StatusOr<Planned> PlanOneState(
    World& world, const std::string& label,
    const absl::StatusOr<nn::StateDict>& state) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  CH_ASSIGN_OR_RETURN(
      const DescribedState described,
      Agree(*comm, label, DescribeIfOk(state), /*with_values=*/true));
  CH_RETURN_IF_ERROR(nn::CheckCopies(*comm, label, *state));
  // From here on all ranks find the same errors.
  Planned planned;
  CH_ASSIGN_OR_RETURN(planned.plan,
                      PlanSave(described.tensors, world.AllRanks()));
  planned.plan.index.values = described.values;
  planned.data = described.data;
  return planned;
}

/// Returns the text of a part of the plan, which the part's first rank sends:
/// one line of writers, then the index.
absl::StatusOr<std::string> TextOfPart(const absl::StatusOr<Planned>& planned,
                                       const World& world, const World& part) {
  CH_RETURN_IF_ERROR(planned.status());
  if (part.rank() != 0) return std::string();
  const std::vector<int> all = world.AllRanks();
  std::vector<size_t> writers;
  const std::vector<int> ranks = part.AllRanks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (planned->plan.by_rank[i].empty()) continue;
    writers.push_back(static_cast<size_t>(
        std::find(all.begin(), all.end(), ranks[i]) - all.begin()));
  }
  CH_ASSIGN_OR_RETURN(const std::string index,
                      FormatIndex(planned->plan.index));
  return absl::StrCat(absl::StrJoin(writers, ","), "\n", index);
}

absl::StatusOr<PlanPart> PartOfText(const std::string& text) {
  const std::pair<std::string, std::string> halves =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  PlanPart part;
  for (const absl::string_view writer :
       absl::StrSplit(halves.first, ',', absl::SkipEmpty())) {
    CH_CHECK(absl::SimpleAtoi(writer, &part.writers.emplace_back())) << text;
  }
  CH_ASSIGN_OR_RETURN(part.index, ParseIndex(halves.second, "a rank's plan"));
  return part;
}

/// Checks that all ranks of the tensors' meshes are in `part`, whose ranks have
/// the same names.
absl::Status CheckMeshes(const nn::StateDict& state, const World& part) {
  for (const auto& [name, value] : state.entries()) {
    const auto* const tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr || !tensor->defined() || !tensor->is_distributed()) {
      continue;
    }
    for (const int rank : LayoutOf(*tensor).mesh().ranks()) {
      if (part.Contains(rank)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "\"", name, "\" is on ", LayoutOf(*tensor).mesh().ToString(),
          ", but of its ranks only ", absl::StrJoin(part.AllRanks(), ", "),
          " have a state with these names"));
    }
  }
  return absl::OkStatus();
}

/// Plans a save of ranks whose states have different names. Ranks with the same
/// names plan their part.
absl::StatusOr<Planned> PlanUnion(World& world, const std::string& label,
                                  const absl::StatusOr<nn::StateDict>& state) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  absl::StatusOr<std::string> names = std::string();
  if (state.ok()) {
    names = HashToHex(HashText(absl::StrJoin(nn::NamesOf(*state), "\n")));
  } else {
    names = state.status();
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names_of,
                      Gather(*comm, absl::StrCat(label, ", names"), names));
  std::vector<int> alike;
  for (size_t i = 0; i < names_of.size(); ++i) {
    if (names_of[i] == *names) alike.push_back(comm->world_ranks()[i]);
  }
  CH_ASSIGN_OR_RETURN(World* const part, world.Subset(std::move(alike)));
  const absl::Status whole = CheckMeshes(*state, *part);
  const absl::StatusOr<Planned> own = whole.ok()
                                          ? PlanOneState(*part, label, state)
                                          : PlanOneState(*part, label, whole);
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      Gather(*comm, absl::StrCat(label, ", parts"),
                             TextOfPart(own, world, *part)));
  std::vector<PlanPart> parts;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    CH_ASSIGN_OR_RETURN(parts.emplace_back(), PartOfText(text));
  }
  Planned planned;
  CH_ASSIGN_OR_RETURN(planned.plan, JoinPlans(parts, world.size()));
  for (const IndexedTensor& tensor : planned.plan.index.tensors) {
    const nn::StateValue* const mine = state->Find(tensor.name);
    planned.data.push_back(mine == nullptr ? Tensor()
                                           : std::get<Tensor>(*mine));
  }
  return planned;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SaveJob>> SaveJob::Prepare(
    World& world, const absl::StatusOr<nn::StateDict>& state,
    const std::string& dir, const SaveCheckpointOptions& options) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  const std::string label = absl::StrCat("save to ", dir);
  CH_ASSIGN_OR_RETURN(Planned planned, options.union_of_ranks
                                           ? PlanUnion(world, label, state)
                                           : PlanOneState(world, label, state));
  SavePlan& plan = planned.plan;
  CH_ASSIGN_OR_RETURN(const std::string index, FormatIndex(plan.index));
  // Hashes are added later.
  constexpr size_t kHashBytes = 32;
  const size_t index_bytes =
      index.size() + kHashBytes * plan.index.tensors.size();
  if (index_bytes > static_cast<size_t>(kMaxTextBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the index of ", dir, " would have ", index_bytes,
        " bytes, but at most ", kMaxTextBytes,
        " can be read; save a state of fewer shards (on a smaller mesh)"));
  }
  std::unique_ptr<SaveJob> job(
      new SaveJob(world, std::move(plan), *options.file_system));
  CH_ASSIGN_OR_RETURN(job->directory_,
                      TextOfFirstRank(*comm, "save: open",
                                      [&]() -> absl::StatusOr<std::string> {
                                        const absl::Status opened =
                                            job->Open(dir, options);
                                        if (opened.ok()) return job->directory_;
                                        job->GiveUp();
                                        return opened;
                                      }));
  job->CutPieces(planned.data);
  // A poisoned rank has no elements to save.
  const absl::Status done = world.context().Synchronize();
  CH_ASSIGN_OR_RETURN(
      job->rounds_, LargestCount(*comm, "save: elements",
                                 done.ok() ? absl::StatusOr<size_t>(
                                                 job->round_begins_.size() - 1)
                                           : done));
  return job;
}

void CutCells(const SavePlan& plan, int rank, absl::Span<const Tensor> data,
              absl::FunctionRef<int64_t(const IndexedTensor&)> element_bytes,
              absl::FunctionRef<void(size_t, const Box&, Tensor)> take) {
  const std::vector<PlannedCell>& cells =
      plan.by_rank[static_cast<size_t>(rank)];
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto t = static_cast<size_t>(cells[i].tensor);
    const IndexedTensor& tensor = plan.index.tensors[t];
    const Box box = tensor.CellBox(cells[i].cell);
    if (box.empty()) continue;
    const Tensor cell = CellOf(data[t], box);
    int64_t first = cell.storage_offset();
    CH_CHECK_OK(ForEachBlock(
        box, element_bytes(tensor), kMaxPieceBytes, [&](const Box& block) {
          take(i, block,
               MakeView(cell.storage(), first, block.sizes,
                        ContiguousStrides(block.sizes), tensor.dtype));
          first += block.numel();
          return absl::OkStatus();
        }));
  }
}

void SaveJob::CutPieces(absl::Span<const Tensor> data) {
  hashes_.resize(plan_.by_rank[rank_].size());
  round_begins_ = {0};
  int64_t in_round = 0;
  CutCells(
      plan_, rank_, data,
      [](const IndexedTensor& tensor) { return SizeOf(tensor.dtype); },
      [&](size_t cell, const Box& box, Tensor part) {
        // Elements that the host addresses are not copied.
        const int64_t in_hand =
            IsHostAddressable(part) ? 0 : part.numel() * SizeOf(part.dtype());
        if (in_round > 0 && in_round + in_hand > kMaxPieceBytes) {
          round_begins_.push_back(pieces_.size());
          in_round = 0;
        }
        in_round += in_hand;
        pieces_.push_back({cell, box, std::move(part)});
      });
  if (!pieces_.empty()) round_begins_.push_back(pieces_.size());
}

absl::Span<const SaveJob::Piece> SaveJob::Round(size_t round) const {
  if (round + 1 >= round_begins_.size()) return {};
  return absl::MakeConstSpan(pieces_).subspan(
      round_begins_[round], round_begins_[round + 1] - round_begins_[round]);
}

absl::Status SaveJob::Open(const std::string& dir,
                           const SaveCheckpointOptions& options) {
  CH_ASSIGN_OR_RETURN(
      target_, options.use_fallback_directory
                   ? NewDirectory::CreateOrFallback(dir, options.overwrite,
                                                    files_, IsCheckpointFile)
                   : NewDirectory::Create(dir, options.overwrite, files_,
                                          IsCheckpointFile));
  directory_ = target_->partial_path();
  for (const std::string& file : plan_.index.files) target_->Add(file);
  for (int rank = 1; rank < plan_.index.ranks; ++rank) {
    target_->Add(ReportFileName(rank));
  }
  target_->Add(kIndexFile);
  return absl::OkStatus();
}

absl::Status SaveJob::WriteIndex() {
  CH_ASSIGN_OR_RETURN(const std::string text, FormatIndex(plan_.index));
  return checkpoint::WriteFile(absl::StrCat(directory_, "/", kIndexFile), text,
                               files_);
}

absl::Status SaveJob::BeginFile() {
  if (target_ != nullptr) CH_RETURN_IF_ERROR(WriteIndex());
  if (plan_.by_rank[rank_].empty()) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(
      WeightFilesPlan file,
      WeightFilesPlan::OfOneFile(plan_.index.files[plan_.FileOf(rank_)],
                                 plan_.InfosOf(rank_)));
  writer_ = std::make_unique<WeightFiles>(directory_, std::move(file), files_);
  return writer_->Create();
}

absl::Status SaveJob::Write(absl::Span<const Piece> pieces,
                            absl::Span<const void* const> data) {
  CH_CHECK_EQ(data.size(), pieces.size()) << "one for each piece";
  for (size_t i = 0; i < pieces.size(); ++i) {
    const PlannedCell& cell = plan_.by_rank[rank_][pieces[i].cell];
    const IndexedTensor& tensor = plan_.index.tensors[cell.tensor];
    CH_ASSIGN_OR_RETURN(const uint64_t hash,
                        WriteBox(tensor, pieces[i].box, data[i], *writer_));
    hashes_[pieces[i].cell] += hash;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SaveJob::EndFile() {
  if (writer_ == nullptr) return std::string();
  CH_CHECK_EQ(writer_->appended(), plan_.BytesOf(rank_)) << "all cells";
  CH_RETURN_IF_ERROR(writer_->Sync());
  CH_RETURN_IF_ERROR(writer_->GiveNames());
  return HashesToHex(hashes_);
}

int64_t SaveJob::bytes_written() const {
  return writer_ == nullptr ? 0 : writer_->appended();
}

absl::Status SaveJob::Commit(absl::Span<const std::string> hashes) {
  CH_CHECK(target_ != nullptr)
      << "Commit must be called once, on the first rank";
  // All files are written and stay, whatever happens next.
  target_->Keep();
  const std::unique_ptr<NewDirectory> target = std::move(target_);
  for (IndexedTensor& tensor : plan_.index.tensors) tensor.hash = 0;
  for (size_t rank = 0; rank < plan_.by_rank.size(); ++rank) {
    const std::vector<PlannedCell>& cells = plan_.by_rank[rank];
    std::vector<uint64_t> of_rank;
    if (!HashesFromHex(hashes[rank], of_rank) ||
        of_rank.size() != cells.size()) {
      return target->Explain(absl::DataLossError(absl::StrCat(
          "rank ", rank,
          " reported hashes that are not those of its cells: ", hashes[rank])));
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      *plan_.index.tensors[cells[i].tensor].hash += of_rank[i];
    }
  }
  const absl::Status written = WriteIndex();
  if (!written.ok()) return target->Explain(written);
  for (int rank = 1; has_reports_ && rank < plan_.index.ranks; ++rank) {
    // A report that stays does no harm: its name is known and it is never read.
    const std::string report =
        absl::StrCat(directory_, "/", ReportFileName(rank));
    files_.RemoveFile(report);
    files_.RemoveFile(report + ".saving");
  }
  return target->Commit();
}

absl::Status SaveJob::WriteReport(const absl::StatusOr<std::string>& outcome) {
  return checkpoint::WriteFile(
      absl::StrCat(directory_, "/", ReportFileName(rank_)),
      EncodeOutcome(outcome), files_);
}

absl::StatusOr<std::vector<std::string>> SaveJob::AwaitReports(
    const absl::StatusOr<std::string>& own,
    absl::FunctionRef<absl::Status()> give_up) {
  has_reports_ = true;
  const auto size = static_cast<size_t>(plan_.index.ranks);
  std::vector<absl::StatusOr<std::string>> outcomes(size, own);
  std::vector<int> missing(size - 1);
  std::iota(missing.begin(), missing.end(), 1);
  // Shared file systems show new files late.
  constexpr std::chrono::milliseconds kLongest(200);
  std::chrono::milliseconds wait(1);
  while (true) {
    const auto has_reported = [&](int rank) {
      const absl::StatusOr<std::string> text =
          ReadFile(absl::StrCat(directory_, "/", ReportFileName(rank)));
      if (!text.ok()) return false;
      outcomes[static_cast<size_t>(rank)] = DecodeOutcome(*text);
      return true;
    };
    missing.erase(std::remove_if(missing.begin(), missing.end(), has_reported),
                  missing.end());
    if (missing.empty()) break;
    const absl::Status stop = give_up();
    if (!stop.ok()) {
      return absl::Status(
          stop.code(),
          absl::StrCat(
              "gave up waiting for ", directory_, ": rank",
              missing.size() > 1 ? "s " : " ", absl::StrJoin(missing, ", "),
              " did not finish writing: ", std::string(stop.message())));
    }
    std::this_thread::sleep_for(wait);
    wait = std::min(wait * 2, kLongest);
  }
  return TextsOf(outcomes, world_ranks_);
}

namespace {

int FilesOf(const SavePlan& plan, int rank) {
  return plan.by_rank[static_cast<size_t>(rank)].empty() ? 0 : 1;
}

absl::Status PlanDry(World& world, const absl::StatusOr<nn::StateDict>& state,
                     const SaveCheckpointOptions& options) {
  CH_RETURN_IF_ERROR(state.status());
  CH_ASSIGN_OR_RETURN(const SavePlan plan, PlanOf(world, *state));
  CH_RETURN_IF_ERROR(FormatIndex(plan.index).status());
  if (options.stats != nullptr) {
    *options.stats = {.bytes_written = plan.BytesOf(world.rank()),
                      .files = FilesOf(plan, world.rank())};
  }
  return absl::OkStatus();
}

absl::Status Save(World& world, const absl::StatusOr<nn::StateDict>& state,
                  const std::string& dir,
                  const SaveCheckpointOptions& options) {
  if (world.context().dry_run()) return PlanDry(world, state, options);
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<SaveJob> job,
                      SaveJob::Prepare(world, state, dir, options));
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));
  absl::Status written =
      OnEveryRank(*comm, "save: begin", [&] { return job->BeginFile(); });
  // Each round copies elements that the host cannot address.
  for (size_t round = 0; written.ok() && round < job->rounds(); ++round) {
    const absl::Span<const SaveJob::Piece> pieces = job->Round(round);
    std::vector<HostView> views;
    views.reserve(pieces.size());
    std::vector<const void*> data;
    for (const SaveJob::Piece& piece : pieces) {
      views.emplace_back(piece.data);
      data.push_back(views.back().data());
    }
    written = OnEveryRank(*comm, "save: write",
                          [&] { return job->Write(pieces, data); });
  }
  const absl::StatusOr<std::vector<std::string>> hashes =
      written.ok() ? GatherOnEveryRank(*comm, "save: end",
                                       [&] { return job->EndFile(); })
                   : written;
  // The first rank removes incomplete files before the ranks learn of the
  // error, because a program may save again at once.
  if (!hashes.ok() && comm->rank() != 0) job->GiveUp();
  const absl::Status committed = OnFirstRank(*comm, "save: commit", [&] {
    if (hashes.ok()) return job->Commit(*hashes);
    job->GiveUp();
    return absl::OkStatus();
  });
  if (!hashes.ok()) return hashes.status();
  CH_RETURN_IF_ERROR(committed);
  if (options.stats != nullptr) {
    *options.stats = {.bytes_written = job->bytes_written(),
                      .files = FilesOf(job->plan(), world.rank())};
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveCheckpoint(World& world, const nn::StateDict& state,
                            const std::string& dir,
                            const SaveCheckpointOptions& options) {
  return Save(world, state, dir, options);
}

absl::Status SaveCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const SaveCheckpointOptions& options) {
  return Save(world, stateful.State(), dir, options);
}

absl::StatusOr<SavePlan> PlanOf(const World& world,
                                const nn::StateDict& state) {
  CH_ASSIGN_OR_RETURN(const DescribedState described, Describe(state));
  CH_ASSIGN_OR_RETURN(SavePlan plan,
                      PlanSave(described.tensors, world.AllRanks()));
  plan.index.values = described.values;
  return plan;
}

}  // namespace crosshatch::checkpoint
