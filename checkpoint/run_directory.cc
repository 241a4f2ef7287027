// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/run_directory.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/offline.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {
namespace {

constexpr char kRemoving[] = ".removing";
constexpr char kSaving[] = ".saving";
constexpr char kAside[] = ".aside";

/// Returns the step of a directory's name; nullopt if StepDirectory does not
/// give such names.
std::optional<int64_t> StepOf(const std::string& name) {
  int64_t step = 0;
  if (!absl::StartsWith(name, "step-") ||
      !absl::SimpleAtoi(name.substr(5), &step) || step < 0 ||
      name != absl::StrFormat("step-%06d", step)) {
    return std::nullopt;
  }
  return step;
}

/// Returns the step of a name that TakeFreeName made from the step's directory:
/// "step-000003.saving", "step-000003.saving-2".
std::optional<int64_t> StepWithSuffix(const std::string& name,
                                      const std::string& suffix) {
  const std::optional<std::string> step = WithoutFreeSuffix(name, suffix);
  return step.has_value() ? StepOf(*step) : std::nullopt;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& root,
                                                 FileSystem& files) {
  std::vector<std::string> names;
  const int error = files.List(root, names);
  if (error == 0 || error == ENOENT) return names;
  return SystemError(error, "list", root);
}

/// Returns whether `name` is a file of a checkpoint, complete or not.
bool IsUnfinishedFile(const std::string& name) {
  return IsCheckpointFile(std::string(absl::StripSuffix(name, kSaving)));
}

/// Returns the files in `dir` if all are of `kind`; nullopt if it has anything
/// else, e.g. a link.
absl::StatusOr<std::optional<std::vector<std::string>>> OnlyFiles(
    const std::string& dir, KindOfFiles kind, FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NamesIn(dir, files));
  for (const std::string& name : names) {
    FileInfo info;
    const std::string file = absl::StrCat(dir, "/", name);
    if (const int error = files.Examine(file, info); error != 0) {
      return SystemError(error, "examine", file);
    }
    const bool may_be_gone =
        info.kind == FileInfo::Kind::kFile || !info.exists();
    if (!kind(name) || !may_be_gone) {
      return std::optional<std::vector<std::string>>();
    }
  }
  return std::optional(names);
}

absl::StatusOr<bool> IsOwnDirectory(const std::string& dir, FileSystem& files) {
  FileInfo info;
  if (const int error = files.Examine(dir, info); error != 0) {
    return SystemError(error, "examine", dir);
  }
  return info.is_directory();
}

/// Returns the directories in `root` of interrupted removals.
absl::StatusOr<std::vector<std::string>> HalfRemoved(const std::string& root,
                                                     FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NamesIn(root, files));
  std::vector<std::string> found;
  for (const std::string& name : names) {
    absl::string_view of_step = name;
    if (!absl::ConsumeSuffix(&of_step, kRemoving) ||
        !StepOf(std::string(of_step)).has_value()) {
      continue;
    }
    found.push_back(absl::StrCat(root, "/", name));
  }
  return found;
}

void AddError(const absl::Status& error, absl::Status& all) {
  if (error.ok()) return;
  all = all.ok() ? error
                 : absl::Status(all.code(), absl::StrCat(all.message(), "; ",
                                                         error.message()));
}

/// Removes `dir`, which no longer has a checkpoint's name.
absl::Status RemoveNameless(const std::string& dir, FileSystem& files,
                            KindOfFiles kind = IsCheckpointFile) {
  CH_ASSIGN_OR_RETURN(const bool is_own, IsOwnDirectory(dir, files));
  if (!is_own) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> names,
                      OnlyFiles(dir, kind, files));
  if (!names.has_value()) return absl::OkStatus();
  for (const std::string& name : *names) {
    const std::string file = absl::StrCat(dir, "/", name);
    const int error = files.RemoveFile(file);
    if (error != 0 && error != ENOENT) {
      return SystemError(error, "remove", file);
    }
  }
  const int error = files.RemoveDirectory(dir);
  if (error == 0 || error == ENOENT) return absl::OkStatus();
  return SystemError(error, "remove", dir);
}

absl::Status Remove(const std::string& root, int64_t step, FileSystem& files) {
  const std::string dir = StepDirectory(root, step);
  CH_ASSIGN_OR_RETURN(const bool is_own, IsOwnDirectory(dir, files));
  if (!is_own) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> names,
                      OnlyFiles(dir, IsCheckpointFile, files));
  if (!names.has_value()) return absl::OkStatus();
  const std::string nameless = dir + kRemoving;
  if (const int error = files.Rename(dir, nameless); error != 0) {
    return SystemError(error, "rename " + dir + " to", nameless);
  }
  // Without the flush, the machine could restart with the name but not all
  // files.
  if (const int error = files.SyncDirectory(root); error != 0) {
    return SystemError(error, "flush", root);
  }
  return RemoveNameless(nameless, files);
}

/// Returns whether `dir`, left by a save or removal, has all files of a
/// checkpoint.
/// \error if that cannot be determined.
absl::StatusOr<bool> IsWhole(const std::string& dir, FileSystem& files) {
  FileInfo info;
  const std::string index_path = absl::StrCat(dir, "/", kIndexFile);
  if (const int error = files.Examine(index_path, info); error != 0) {
    return SystemError(error, "examine", index_path);
  }
  if (!info.exists()) return false;
  CH_ASSIGN_OR_RETURN(const CheckpointIndex index, ReadIndex(dir));
  std::vector<int64_t> least(index.files.size(), 0);
  for (const IndexedTensor& tensor : index.tensors) {
    for (int cell = 0; cell < tensor.num_cells(); ++cell) {
      least[static_cast<size_t>(tensor.files[static_cast<size_t>(cell)])] +=
          tensor.CellBox(cell).numel() * SizeOf(tensor.dtype);
    }
  }
  for (size_t i = 0; i < least.size(); ++i) {
    const std::string file = absl::StrCat(dir, "/", index.files[i]);
    if (const int error = files.Examine(file, info); error != 0) {
      return SystemError(error, "examine", file);
    }
    if (!info.exists()) return false;
    if (info.kind == FileInfo::Kind::kFile && info.size < least[i]) {
      return false;
    }
  }
  CH_RETURN_IF_ERROR(CheckComplete(dir));
  return true;
}

/// Returns the directory of the last step before `step` whose checkpoint is
/// intact; empty if there is none. Reads every checkpoint that it tries.
absl::StatusOr<std::string> LastWholeBefore(const std::string& root,
                                            int64_t step, FileSystem& files) {
  CH_ASSIGN_OR_RETURN(std::vector<int64_t> steps, StepsIn(root, files));
  std::reverse(steps.begin(), steps.end());
  for (const int64_t before : steps) {
    const std::string dir = StepDirectory(root, before);
    if (before < step && Verify(dir).ok()) return dir;
  }
  return std::string();
}

}  // namespace

std::string StepDirectory(const std::string& root, int64_t step) {
  return absl::StrCat(root, absl::StrFormat("/step-%06d", step));
}

absl::StatusOr<std::vector<int64_t>> StepsIn(const std::string& root,
                                             FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NamesIn(root, files));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value()) continue;
    FileInfo info;
    const std::string index = absl::StrCat(root, "/", name, "/", kIndexFile);
    const int error = files.Examine(index, info);
    if (error != 0 && error != ENOTDIR) {
      return SystemError(error, "examine", index);
    }
    // Skips directories that are not checkpoints but have such names.
    if (info.exists()) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::optional<int64_t>> LatestIn(const std::string& root,
                                                FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepsIn(root, files));
  if (steps.empty()) return std::optional<int64_t>();
  return std::optional(steps.back());
}

absl::StatusOr<std::vector<std::string>> UnfinishedSteps(
    const std::string& root, FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NamesIn(root, files));
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (!StepWithSuffix(name, kSaving).has_value()) continue;
    // The step itself may be a link to outside of `root`.
    std::string dir = absl::StrCat(root, "/", name);
    const absl::StatusOr<bool> is_own = IsOwnDirectory(dir, files);
    if (is_own.value_or(true)) found.push_back(std::move(dir));
  }
  return found;
}

absl::Status CheckRunDirectory(const std::string& root, FileSystem& files) {
  // Checks whether directories can be created in `root` at all.
  CH_RETURN_IF_ERROR(CheckMayWrite(StepDirectory(root, 0), /*overwrite=*/true,
                                   files, IsCheckpointFile));
  CH_ASSIGN_OR_RETURN(const std::optional<int64_t> latest,
                      LatestIn(root, files));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NamesIn(root, files));
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value() || *step <= latest.value_or(-1)) continue;
    CH_RETURN_IF_ERROR(CheckMayWrite(absl::StrCat(root, "/", name),
                                     /*overwrite=*/false, files,
                                     IsCheckpointFile));
  }
  return absl::OkStatus();
}

absl::Status RemoveOldSteps(const std::string& root, int keep, int64_t newest,
                            const std::set<int64_t>& own, FileSystem& files) {
  if (keep <= 0) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> half,
                      HalfRemoved(root, files));
  // A file that cannot be removed does not prevent other removals.
  absl::Status status;
  for (const std::string& dir : half) {
    AddError(RemoveNameless(dir, files), status);
  }
  CH_ASSIGN_OR_RETURN(std::vector<int64_t> steps, StepsIn(root, files));
  steps.erase(std::remove_if(steps.begin(), steps.end(),
                             [&](int64_t step) {
                               return step >= newest || own.count(step) == 0;
                             }),
              steps.end());
  const auto old = static_cast<int64_t>(steps.size()) - (keep - 1);
  for (int64_t i = 0; i < old; ++i) {
    AddError(Remove(root, steps[static_cast<size_t>(i)], files), status);
  }
  return status;
}

absl::Status CleanRunDirectory(const std::string& root, std::string& report,
                               FileSystem& files) {
  std::vector<std::string> names;
  if (const int error = files.List(root, names); error != 0) {
    return SystemError(error, "list", root);
  }
  const bool holds_a_step =
      std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return StepOf(name.substr(0, name.find('.'))).has_value();
      });
  if (!names.empty() && !holds_a_step) {
    return absl::InvalidArgumentError(absl::StrCat(
        root, " is not the directory of a run: it contains no step-N"));
  }
  CH_ASSIGN_OR_RETURN(std::vector<std::string> left, HalfRemoved(root, files));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> unfinished,
                      UnfinishedSteps(root, files));
  left.insert(left.end(), unfinished.begin(), unfinished.end());
  absl::Status status;
  for (const std::string& dir : left) {
    const auto stays = [&](absl::string_view why) {
      absl::StrAppend(&report, "left ", dir, ": ", why, "\n");
    };
    const DirectoryLock lock(dir);
    const absl::StatusOr<bool> is_own = IsOwnDirectory(dir, files);
    if (!is_own.ok()) {
      stays(absl::StrCat("cannot determine whether it is complete: ",
                         is_own.status().message()));
    } else if (!*is_own) {
      stays("it is not a directory");
    } else if (lock.error() == EWOULDBLOCK) {
      stays("a save is writing to it");
    } else if (lock.error() != 0) {
      stays("this file system does not report whether a save is writing to it");
    } else if (const absl::StatusOr<bool> whole = IsWhole(dir, files);
               !whole.ok()) {
      stays(absl::StrCat("cannot determine whether it is complete: ",
                         whole.status().message()));
    } else if (*whole) {
      stays("it contains a complete checkpoint");
    } else {
      const auto names = OnlyFiles(dir, IsUnfinishedFile, files);
      if (names.ok() && !names->has_value()) {
        stays("it contains other files than those of a checkpoint");
        continue;
      }
      const absl::Status removed = RemoveNameless(dir, files, IsUnfinishedFile);
      AddError(removed, status);
      if (removed.ok()) absl::StrAppend(&report, "removed ", dir, "\n");
    }
  }
  return status;
}

absl::Status SetAsideLaterSteps(const std::string& root, int64_t step,
                                FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepsIn(root, files));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NamesIn(root, files));
  for (const std::string& name : names) {
    if (steps.empty() || steps.back() <= step) break;
    if (StepWithSuffix(name, kAside).value_or(step) <= step) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        root, "/", name, " was set aside before, and ",
        StepDirectory(root, steps.back()),
        " may be from the run that continued since; to set it aside too, first "
        "move or remove the .aside directories after step ",
        step));
  }
  for (const int64_t later : steps) {
    if (later <= step) continue;
    const std::string dir = StepDirectory(root, later);
    std::string aside;
    const int error = TakeFreeName(
        dir, kAside,
        [&](const std::string& name) { return RenameToFree(files, dir, name); },
        aside);
    if (error != 0) return SystemError(error, "rename " + dir + " to", aside);
  }
  const int error = files.SyncDirectory(root);
  return error == 0 ? absl::OkStatus() : SystemError(error, "flush", root);
}

RunCheckpoints::RunCheckpoints(World& world, std::string root,
                               RunCheckpointsOptions options)
    : world_(world),
      root_(std::move(root)),
      options_(options),
      saver_(world, {.use_fallback_directory = true,
                     .file_system = options.file_system}) {}

absl::StatusOr<std::optional<int64_t>> RunCheckpoints::Latest() {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  // Uses the first rank's result, because others may see older directory
  // contents.
  CH_ASSIGN_OR_RETURN(
      const std::string text,
      TextOfFirstRank(
          *comm, "latest checkpoint", [&]() -> absl::StatusOr<std::string> {
            CH_ASSIGN_OR_RETURN(const std::optional<int64_t> latest,
                                LatestIn(root_, *options_.file_system));
            return latest.has_value() ? absl::StrCat(*latest) : std::string();
          }));
  int64_t step = 0;
  if (!absl::SimpleAtoi(text, &step)) return std::optional<int64_t>();
  return std::optional(step);
}

absl::Status RunCheckpoints::Load(nn::Stateful& stateful, int64_t step,
                                  const LoadCheckpointOptions& options) {
  const std::string dir = StepDirectory(root_, step);
  const absl::Status loaded = LoadCheckpoint(world_, stateful, dir, options);
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  if (absl::IsDataLoss(loaded)) {
    CH_ASSIGN_OR_RETURN(const std::string whole,
                        TextOfFirstRank(*comm, "last complete checkpoint", [&] {
                          return LastWholeBefore(root_, step,
                                                 *options_.file_system);
                        }));
    return absl::DataLossError(absl::StrCat(
        loaded.message(), "; ",
        whole.empty()
            ? "no checkpoint before it is complete"
            : absl::StrCat("the last complete one before it is ", whole)));
  }
  CH_RETURN_IF_ERROR(loaded);
  return OnFirstRank(*comm, "own checkpoints", [&]() -> absl::Status {
    CH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                        StepsIn(root_, *options_.file_system));
    resumed_.insert(steps.begin(),
                    std::upper_bound(steps.begin(), steps.end(), step));
    return absl::OkStatus();
  });
}

absl::Status RunCheckpoints::SetAsideAfter(int64_t step) {
  if (world_.context().dry_run()) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  return OnFirstRank(*comm, "set later steps aside", [&] {
    return SetAsideLaterSteps(root_, step, *options_.file_system);
  });
}

absl::Status RunCheckpoints::Save(nn::Stateful& stateful, int64_t step) {
  const std::string dir = StepDirectory(root_, step);
  const auto remove_old = [this, dir, step, resumed = resumed_] {
    saved_.insert(step);
    std::set<int64_t> own = resumed;
    own.insert(saved_.begin(), saved_.end());
    const absl::Status status =
        RemoveOldSteps(root_, options_.keep, step, own, *options_.file_system);
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat(dir, " is saved, but an old checkpoint was not removed: ",
                     std::string(status.message())));
  };
  // A checkpoint of the previous save becomes the run's own once it is
  // committed.
  CH_RETURN_IF_ERROR(Wait());
  const bool is_own = saved_.count(step) != 0 || resumed_.count(step) != 0;
  if (options_.async) return saver_.Save(stateful, dir, is_own, remove_old);
  const absl::Time begin = absl::Now();
  const absl::Status saved = [&]() -> absl::Status {
    CH_RETURN_IF_ERROR(SaveCheckpoint(world_, stateful, dir,
                                      {.overwrite = is_own,
                                       .use_fallback_directory = true,
                                       .file_system = options_.file_system}));
    // No new checkpoint is in place, so no old one may be removed.
    if (world_.context().dry_run()) return absl::OkStatus();
    CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                        AllRanks(world_));
    return OnFirstRank(*comm, "remove old checkpoints", remove_old);
  }();
  blocked_duration_ = absl::Now() - begin;
  return saved;
}

absl::Status RunCheckpoints::Wait() { return saver_.Wait(); }

}  // namespace crosshatch::checkpoint
