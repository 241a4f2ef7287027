// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/ranks.h"

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

// Reports each failure once, with all ranks that it occurred on.
void Report(const std::vector<std::vector<FailedCheck>>& by_rank) {
  std::vector<FailedCheck> failures;
  std::vector<std::vector<size_t>> ranks;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const FailedCheck& failed : by_rank[rank]) {
      const size_t at = static_cast<size_t>(
          std::find(failures.begin(), failures.end(), failed) -
          failures.begin());
      if (at == failures.size()) {
        failures.push_back(failed);
        ranks.emplace_back();
      }
      // Report a rank that fails twice in the same way once.
      if (ranks[at].empty() || ranks[at].back() != rank) {
        ranks[at].push_back(rank);
      }
    }
  }
  for (size_t i = 0; i < failures.size(); ++i) {
    ADD_FAILURE_AT(failures[i].file, failures[i].line)
        << (ranks[i].size() == 1 ? "rank " : "ranks ")
        << absl::StrJoin(ranks[i], ", ") << ":\n"
        << failures[i].message;
  }
}

struct Selected {
  TestEngine engine = TestEngine::kLocal;
  Device::Kind device = Device::Kind::kCpu;
  friend auto operator<=>(const Selected&, const Selected&) = default;
};

Selected& TheSelected() {
  static Selected selected;
  return selected;
}

std::map<Selected, RunnerOfRanks>& Runners() {
  static auto* const runners = new std::map<Selected, RunnerOfRanks>(
      {{Selected{}, [](int ranks, absl::FunctionRef<absl::Status(World&)> body,
                       const JobOptions& options) {
          return RunLocal(ranks, body, options);
        }}});
  return *runners;
}

// Returns this process's rank in mpirun's job.
int RankOfMpirun() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  CH_CHECK(rank != nullptr) << "--test_engine=mpi without mpirun";
  return std::atoi(rank);
}

// Join concatenates strings, Split separates them again.
std::string Join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) {
    absl::StrAppend(&joined, absl::CEscape(text), "\n");
  }
  return joined;
}
std::vector<std::string> Split(const std::string& joined) {
  std::vector<std::string> texts = absl::StrSplit(joined, '\n');
  texts.pop_back();  // Empty text after the last newline.
  for (std::string& text : texts) {
    CH_CHECK(absl::CUnescape(std::string(text), &text)) << joined;
  }
  return texts;
}

// Encodes a rank's result for the other processes of the test.
std::string TextOf(const absl::Status& status,
                   const std::vector<FailedCheck>& failed) {
  std::vector<std::string> texts = {
      absl::StrCat(static_cast<int>(status.code())),
      std::string(status.message())};
  for (const FailedCheck& check : failed) {
    texts.push_back(check.file);
    texts.push_back(absl::StrCat(check.line));
    texts.push_back(check.message);
  }
  return Join(texts);
}

int NumberIn(const std::string& text) {
  int number = 0;
  CH_CHECK(absl::SimpleAtoi(text, &number)) << text;
  return number;
}

// Decodes the results of all ranks into the job's status and the failed checks
// by rank. `files` owns their file names: equal checks have equal pointers.
absl::Status ReadTexts(const std::vector<std::vector<std::string>>& texts,
                       std::set<std::string>& files,
                       std::vector<std::vector<FailedCheck>>& by_rank) {
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (size_t i = 2; i + 2 < texts[rank].size(); i += 3) {
      by_rank[rank].push_back({files.insert(texts[rank][i]).first->c_str(),
                               NumberIn(texts[rank][i + 1]),
                               texts[rank][i + 2]});
    }
  }
  return absl::Status(static_cast<absl::StatusCode>(NumberIn(texts[0][0])),
                      texts[0][1]);
}

// Runs one rank in this process, or none if the job has fewer ranks.
absl::Status StatusOfProcesses(int ranks,
                               absl::FunctionRef<absl::Status(World&)> body,
                               const JobOptions& options) {
  std::vector<FailedCheck> failed;
  const absl::Status status = RunMpi(
      [&](World& world) {
        CheckScope scope;
        absl::Status result = body(world);
        failed = scope.Take();
        return result;
      },
      {.job = options, .ranks = ranks});
  const auto told = ExchangeByMpi(TextOf(status, failed));
  CH_RETURN_IF_ERROR(told.status());
  std::vector<std::vector<std::string>> texts;
  for (const std::string& text : *told) texts.push_back(Split(text));
  std::set<std::string> files;
  std::vector<std::vector<FailedCheck>> by_rank(texts.size());
  absl::Status of_job = ReadTexts(texts, files, by_rank);
  Report(by_rank);
  return of_job;
}

}  // namespace

std::string OfFirstRank(std::string text) {
  if (!RunsOn(TestEngine::kMpi)) return text;
  const auto told = ExchangeByMpi(text);
  CH_CHECK_OK(told.status());
  return (*told)[0];
}

std::vector<std::string> OfFirstRank(std::vector<std::string> lines) {
  return Split(OfFirstRank(Join(lines)));
}

bool RunsOn(TestEngine engine) { return TheSelected().engine == engine; }
bool RunsOn(Device::Kind device) { return TheSelected().device == device; }

void RunOn(TestEngine engine, Device::Kind device) {
  TheSelected() = {engine, device};
}

bool RegisterRunner(TestEngine engine, Device::Kind device,
                    RunnerOfRanks runner) {
  return Runners().insert({{engine, device}, std::move(runner)}).second;
}

bool HasRunner(TestEngine engine, Device::Kind device) {
  return (engine == TestEngine::kMpi && device == Device::Kind::kCpu) ||
         Runners().contains({engine, device});
}

absl::Status StatusOfRanks(int ranks,
                           absl::FunctionRef<absl::Status(World&)> body,
                           const JobOptions& options) {
  if (RunsOn(TestEngine::kMpi)) return StatusOfProcesses(ranks, body, options);
  std::vector<std::vector<FailedCheck>> by_rank(
      static_cast<size_t>(std::max(ranks, 0)));
  const auto checked = [&](World& world) {
    CheckScope scope;
    absl::Status of_rank = body(world);
    by_rank[static_cast<size_t>(world.rank())] = scope.Take();
    return of_rank;
  };
  const absl::Status status =
      options.backends.empty()
          ? Runners().at(TheSelected())(ranks, checked, options)
          : RunLocal(ranks, checked, options);
  Report(by_rank);
  return status;
}

void RunRanks(int ranks, absl::FunctionRef<absl::Status(World&)> body,
              const JobOptions& options, const std::source_location& where) {
  const absl::Status status = StatusOfRanks(ranks, body, options);
  if (!status.ok()) {
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << "the job of " << ranks << " ranks failed: " << status.ToString();
  }
}

std::string FreshDir(const std::string& name) {
  const std::string dir = ::testing::TempDir() + name;
  if (!RunsOn(TestEngine::kMpi) || RankOfMpirun() == 0) {
    std::filesystem::remove_all(dir);
  }
  OfFirstRank("");  // Waits for rank 0.
  return dir;
}

MeshAxes::MeshAxes(const std::vector<int>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    axes_.push_back({std::string(1, static_cast<char>('a' + i)), sizes[i]});
  }
}

int MeshAxes::ranks() const {
  int ranks = 1;
  for (const MeshAxis& axis : axes_) ranks *= axis.size;
  return ranks;
}

}  // namespace crosshatch
