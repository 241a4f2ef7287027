// SPDX-License-Identifier: Apache-2.0
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tests/fsdp_script.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

std::string Describe(const Observation& o) {
  std::string text = absl::StrCat("call ", o.call, ", ", o.what, ":");
  for (const double value : o.values) absl::StrAppend(&text, " ", value);
  return text;
}

std::string Difference(const ScriptResult& got, const ScriptResult& expected) {
  const std::vector<Observation>& of_rank = got.observations;
  const std::vector<Observation>& wanted = expected.observations;
  const size_t count = std::min(of_rank.size(), wanted.size());
  for (size_t i = 0; i < count; ++i) {
    if (of_rank[i] == wanted[i]) continue;
    return absl::StrCat(Describe(of_rank[i]), "\n  and should be ",
                        Describe(wanted[i]));
  }
  if (of_rank.size() == wanted.size()) return "";
  return absl::StrCat(of_rank.size(), " of ", wanted.size(), " observations");
}

}  // namespace

std::string FirstDifference(const FsdpScript& script) {
  const auto got = RunOnMesh(script);
  if (!got.ok()) return absl::StrCat("on the mesh: ", got.status().ToString());
  const auto expected = RunOracle(script, got->front().summoned);
  if (!expected.ok()) {
    return absl::StrCat("on one rank: ", expected.status().ToString());
  }
  for (size_t rank = 0; rank < got->size(); ++rank) {
    const std::string difference = Difference((*got)[rank], (*expected)[rank]);
    if (!difference.empty()) {
      return absl::StrCat("rank ", rank, ", ", difference);
    }
  }
  return "";
}

void ExpectSameAsOracle(const FsdpScript& script) {
  const auto expected = RunOracle(script, /*summoned=*/{});
  ASSERT_TRUE(expected.ok()) << expected.status();
  RunRanks(
      script.ranks(),
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const ScriptResult result,
                            RunOnRank(script, world));
        CH_EXPECT_EQ(
            Difference(result, (*expected)[static_cast<size_t>(world.rank())]),
            "");
        return absl::OkStatus();
      },
      {.threads_per_rank = 1,
       .test = {.adversarial_seed = script.adversarial_seed}});
}

std::string FirstDifferenceApart(const FsdpScript& script) {
  int ends[2];
  CH_CHECK_EQ(pipe(ends), 0);
  const pid_t child = fork();
  CH_CHECK_GE(child, 0);
  if (child == 0) {
    // The pipe also receives the message of a failed check.
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    const std::string difference = FirstDifference(script);
    std::fputs(difference.c_str(), stderr);
    std::_Exit(difference.empty() ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    said.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  CH_CHECK_EQ(waitpid(child, &status, 0), child);
  if (status == 0) return "";
  return absl::StrCat("status ", status, ": ", said);
}

FsdpScript Smallest(FsdpScript script) {
  const auto take = [&script](FsdpScript smaller) {
    const bool fails = !FirstDifferenceApart(smaller).empty();
    if (fails) script = std::move(smaller);
    return fails;
  };
  // Remove large pieces of the calls first, then smaller ones.
  for (size_t piece = script.calls.size(); piece > 0; piece /= 2) {
    for (size_t at = 0; at + piece <= script.calls.size();) {
      FsdpScript smaller = script;
      const auto begin = smaller.calls.begin() + static_cast<ptrdiff_t>(at);
      smaller.calls.erase(begin, begin + static_cast<ptrdiff_t>(piece));
      if (!take(std::move(smaller))) at += piece;
    }
  }
  for (size_t i = 0; i + 1 < script.shards.size();) {
    FsdpScript smaller = script;
    smaller.shards.erase(smaller.shards.begin() + static_cast<ptrdiff_t>(i));
    if (!take(std::move(smaller))) ++i;
  }
  for (size_t i = 0; i < script.shards.size(); ++i) {
    FsdpScript smaller = script;
    smaller.shards[i] = {.parts = script.shards[i].parts};
    smaller.shards[i].options.reduction.divide_factor = 1;
    take(std::move(smaller));
  }
  FsdpScript calm = script;
  calm.adversarial_seed = 0;
  take(std::move(calm));
  return script;
}

}  // namespace crosshatch
