// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/rank_classes.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::verify {
namespace {

// Bounds the time: a run takes milliseconds.
constexpr int kMostRuns = 5000;
constexpr int kSample = 16;

class Classes {
 public:
  Classes(const MeshLayout& mesh,
          absl::FunctionRef<absl::StatusOr<RankLog>(int rank)> record)
      : mesh_(mesh), record_(record) {}

  int runs() const { return runs_; }

  absl::StatusOr<RankLog> Record(int rank) {
    if (++runs_ > kMostRuns) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the ranks of ", mesh_.ToString(), " differ too much: ", kMostRuns,
          " runs do not give its classes. Verify a smaller mesh"));
    }
    CH_ASSIGN_OR_RETURN(RankLog log, record_(rank));
    digests_[rank] = log.Digest();
    return log;
  }
  absl::StatusOr<uint64_t> Digest(int rank) {
    const auto found = digests_.find(rank);
    if (found != digests_.end()) return found->second;
    CH_RETURN_IF_ERROR(Record(rank).status());
    return digests_[rank];
  }

  /// Divides the coordinates of each axis until no line of ranks divides them
  /// further.
  absl::Status Divide() {
    of_.assign(static_cast<size_t>(mesh_.ndim()), {});
    for (int a = 0; a < mesh_.ndim(); ++a) {
      of_[static_cast<size_t>(a)].resize(static_cast<size_t>(mesh_.size(a)));
    }
    for (size_t before = 0; before != NumClasses();) {
      before = NumClasses();
      for (int a = 0; a < mesh_.ndim(); ++a) CH_RETURN_IF_ERROR(DivideAxis(a));
    }
    return absl::OkStatus();
  }

  /// Returns for each class its first coordinate.
  std::vector<MeshCoordinate> Representatives() const {
    std::vector<MeshCoordinate> found = {MeshCoordinate()};
    for (int a = 0; a < mesh_.ndim(); ++a) {
      std::vector<MeshCoordinate> longer;
      for (const MeshCoordinate& at : found) {
        for (const int first : FirstOfClasses(a)) {
          longer.push_back(at);
          longer.back().push_back(first);
        }
      }
      found = std::move(longer);
    }
    return found;
  }

  /// Returns the coordinate that stands for `at`.
  MeshCoordinate RepresentativeOf(MeshCoordinate at) const {
    for (int a = 0; a < mesh_.ndim(); ++a) {
      int& index = at[static_cast<size_t>(a)];
      index = FirstOfClasses(a)[static_cast<size_t>(
          of_[static_cast<size_t>(a)][static_cast<size_t>(index)])];
    }
    return at;
  }

 private:
  /// The first coordinate of each class of the axis.
  std::vector<int> FirstOfClasses(int axis) const {
    const std::vector<int>& of = of_[static_cast<size_t>(axis)];
    std::vector<int> first;
    for (int i = 0; i < static_cast<int>(of.size()); ++i) {
      if (of[static_cast<size_t>(i)] == static_cast<int>(first.size())) {
        first.push_back(i);
      }
    }
    return first;
  }
  size_t NumClasses() const {
    size_t n = 1;
    for (int a = 0; a < mesh_.ndim(); ++a) n *= FirstOfClasses(a).size();
    return n;
  }

  absl::Status DivideAxis(int axis) {
    const auto a = static_cast<size_t>(axis);
    const std::vector<MeshCoordinate> lines = Representatives();
    std::map<std::vector<uint64_t>, int> classes;
    std::vector<int> of;
    for (int i = 0; i < mesh_.size(axis); ++i) {
      std::vector<uint64_t> key;
      for (MeshCoordinate at : lines) {
        if (at[a] != 0) continue;  // The first class has coordinate 0.
        at[a] = i;
        CH_ASSIGN_OR_RETURN(const uint64_t digest, Digest(mesh_.rank_at(at)));
        key.push_back(digest);
      }
      of.push_back(
          classes.emplace(key, static_cast<int>(classes.size())).first->second);
    }
    of_[a] = std::move(of);
    return absl::OkStatus();
  }

  const MeshLayout& mesh_;
  const absl::FunctionRef<absl::StatusOr<RankLog>(int rank)> record_;
  int runs_ = 0;
  std::map<int, uint64_t> digests_;
  /// By axis and coordinate: the class, numbered by first appearance.
  std::vector<std::vector<int>> of_;
};

}  // namespace

absl::StatusOr<JobLog> RecordClasses(
    const MeshLayout& mesh, int max_ranks, const std::vector<int>& batch_axes,
    absl::FunctionRef<absl::StatusOr<RankLog>(int rank)> record,
    int& ranks_run) {
  JobLog job(mesh);
  Classes classes(mesh, record);
  job.log_of.resize(static_cast<size_t>(mesh.size()));
  if (mesh.size() <= max_ranks) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      CH_ASSIGN_OR_RETURN(RankLog log, classes.Record(rank));
      job.origins[rank] = LabelOrigins(log);
      job.log_of[static_cast<size_t>(rank)] = rank;
      job.logs.push_back(std::move(log));
    }
    ranks_run = classes.runs();
    return job;
  }
  CH_RETURN_IF_ERROR(classes.Divide());
  std::map<int, int> index;  // Of the log of each representative.
  for (const MeshCoordinate& at : classes.Representatives()) {
    const int rank = mesh.rank_at(at);
    CH_ASSIGN_OR_RETURN(RankLog log, classes.Record(rank));
    job.origins[rank] = LabelOrigins(log);
    index[rank] = static_cast<int>(job.logs.size());
    job.logs.push_back(std::move(log));
    for (const int axis : batch_axes) {
      MeshCoordinate next = at;
      int& i = next[static_cast<size_t>(axis)];
      i = (i + 1) % mesh.size(axis);
      const int neighbour = mesh.rank_at(next);
      if (job.origins.count(neighbour) > 0) continue;
      CH_ASSIGN_OR_RETURN(const RankLog other, classes.Record(neighbour));
      job.origins[neighbour] = LabelOrigins(other);
    }
  }
  for (int rank = 0; rank < mesh.size(); ++rank) {
    job.log_of[static_cast<size_t>(rank)] = index.at(
        mesh.rank_at(classes.RepresentativeOf(*mesh.CoordinateOf(rank))));
  }
  // The last rank, and others all over the mesh.
  for (int i = 1; i <= kSample; ++i) {
    const auto rank =
        static_cast<int>(int64_t{mesh.size()} * i / kSample - 1 -
                         (i < kSample ? i * 7 % (mesh.size() / kSample) : 0));
    CH_ASSIGN_OR_RETURN(const uint64_t digest, classes.Digest(rank));
    const RankLog& of_class = job.LogOf(rank);
    if (digest == of_class.Digest()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " does not issue the same as rank ", of_class.rank,
        ", although their coordinates on ", mesh.ToString(),
        " are alike: the program is different on single ranks, so classes do "
        "not stand for them. Verify a mesh of at most ",
        max_ranks, " ranks, or raise VerifyOptions::max_ranks"));
  }
  ranks_run = classes.runs();
  return job;
}

}  // namespace crosshatch::verify
