// SPDX-License-Identifier: Apache-2.0

/// \file
/// Random programs of ops on distributed tensors, compared with the same on
/// plain ones. CROSSHATCH_FUZZ_SEED sets the seed, CROSSHATCH_FUZZ_PROGRAMS the
/// number of programs on each mesh. A failing program is printed.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/tests/random_program.h"

namespace crosshatch {
namespace {

// Also fails on plain tensors: the program is invalid.
constexpr std::array<const char*, 2> kRefusedByPlain = {
    "was changed in place: it is at version",
    "a leaf that requires a gradient is written in place",
};

// Documented failures of distributed tensors only: whole sentences, so that no
// other failure matches.
constexpr std::array<const char*, 7> kRefused = {
    // tensor/ops/in_place.h
    ": a view of a distributed tensor or of its local tensor is written in "
    "place where autograd records:",
    ", is used after an in-place write to its base; make the view again",
    " is used after an in-place write to its base tensor, which changed only "
    "some ranks' parts of it: it is a copied view,",
    " cannot be written: it is a copied view, whose base would not see the "
    "write, or was redistributed without",
    // dtensor/rules, of views that no layout can express
    " has the same elements on every rank: the split cuts through what the "
    "view keeps together. Where it is the "
    "output of an nn::Linear,",
    // and of writes to sums, products and the like
    ": the op writes in place to a tensor whose reductions are pending; "
    "redistribute first",
    ": its reductions are pending",
};

// Similar messages that must not occur: of a single element all layouts exist,
// and backward accepts what forward accepted.
constexpr std::array<const char*, 3> kNoRefusal = {
    ": no layout of a tensor of sizes [] has",
    ", gradient of ",
    ", gradient for the leaf ",
};

bool ContainsAny(const std::string& text, absl::Span<const char* const> parts) {
  for (const char* part : parts) {
    if (absl::StrContains(text, part)) return true;
  }
  return false;
}

// Returns whether a program may fail with `text`. Only one that writes in place
// may fail because of a write.
bool MayBeRefused(const RandomProgram& program, const std::string& text) {
  const bool writes =
      std::any_of(program.instructions.begin(), program.instructions.end(),
                  [](const Instruction& call) { return call.kind->in_place; });
  return ContainsAny(text, kRefused) && !ContainsAny(text, kNoRefusal) &&
         (writes || !absl::StrContains(text, "after an in-place write"));
}

struct Verdict {
  enum Kind { kAgrees, kTooLarge, kRefusedByPlain, kRefused, kWrong };
  Kind kind = kWrong;
  std::string text;
};

// A failed check ends the process, so programs run one after another in a
// child. It reports its progress: a line "@plain", then "@distributed", then
// the verdict.
[[noreturn]] void RunAll(absl::Span<const RandomProgram> programs, int out) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  dup2(out, STDERR_FILENO);
  const auto say = [out](const std::string& text) {
    const std::string line = absl::StrCat("\n", text, "\n");
    CH_CHECK_EQ(write(out, line.data(), line.size()),
                static_cast<ssize_t>(line.size()));
  };
  for (const RandomProgram& program : programs) {
    // Ends a child that hangs and counts it as a failure.
    alarm(300);
    say("@plain");
    const ProgramOutcome expected = RunPlain(program);
    if (!IsSmall(program, expected)) {
      say("@large");
      continue;
    }
    say("@distributed");
    const std::string wrong = RunDistributed(program, expected);
    say(wrong.empty() ? "@agrees" : absl::StrCat("@wrong ", wrong));
  }
  _exit(0);
}

std::string OutputOf(absl::Span<const RandomProgram> programs) {
  int ends[2];
  CH_CHECK_EQ(pipe(ends), 0);
  const pid_t child = fork();
  CH_CHECK_GE(child, 0);
  if (child == 0) {
    close(ends[0]);
    RunAll(programs, ends[1]);
  }
  close(ends[1]);
  std::string output;
  std::array<char, 4096> buffer;
  for (ssize_t n = 0; (n = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    absl::StrAppend(&output, "\n", strsignal(WTERMSIG(status)), "\n");
  }
  return output;
}

std::vector<Verdict> Judge(absl::Span<const RandomProgram> programs) {
  std::vector<Verdict> verdicts;
  while (verdicts.size() < programs.size()) {
    const std::string output = OutputOf(programs.subspan(verdicts.size()));
    const std::string start = "\n@plain\n";
    size_t at = output.find(start);
    CH_CHECK(at != std::string::npos) << output;
    while (at != std::string::npos) {
      const size_t next = output.find(start, at + start.size());
      const std::string said = output.substr(
          at + start.size(),
          next == std::string::npos ? next : next - at - start.size());
      at = next;
      const auto judge = [&]() -> Verdict {
        if (absl::StrContains(said, "\n@agrees\n")) return {Verdict::kAgrees};
        if (absl::StrContains(said, "\n@large\n")) return {Verdict::kTooLarge};
        if (absl::StrContains(said, "\n@wrong ")) {
          return {Verdict::kWrong, said};
        }
        if (!absl::StrContains(said, "\n@distributed\n")) {
          return {ContainsAny(said, kRefusedByPlain) ? Verdict::kRefusedByPlain
                                                     : Verdict::kWrong,
                  said};
        }
        return {MayBeRefused(programs[verdicts.size()], said)
                    ? Verdict::kRefused
                    : Verdict::kWrong,
                said};
      };
      verdicts.push_back(judge());
    }
  }
  return verdicts;
}

class RandomProgramsTest : public testing::TestWithParam<std::vector<int>> {};

TEST_P(RandomProgramsTest, GiveWhatOneDeviceGives) {
  const MeshLayout mesh = OracleMesh(GetParam());
  const unsigned seed = FuzzSeed();
  const unsigned count = FuzzCases("CROSSHATCH_FUZZ_PROGRAMS", 60);
  std::cout << "seed " << seed << ", " << count << " programs on "
            << mesh.ToString() << "\n";
  std::mt19937 random(seed + 1000 * static_cast<unsigned>(mesh.size()) +
                      static_cast<unsigned>(mesh.ndim()));
  std::vector<RandomProgram> programs;
  for (unsigned i = 0; i < count; ++i) {
    programs.push_back(MakeRandomProgram(mesh, random));
  }
  const std::vector<Verdict> verdicts = Judge(programs);
  std::array<unsigned, 5> tally = {};
  int shown = 0;
  for (unsigned i = 0; i < count; ++i) {
    ++tally[verdicts[i].kind];
    if (verdicts[i].kind != Verdict::kWrong || ++shown > 3) continue;
    ADD_FAILURE() << "program " << i << " with seed " << seed << ":\n"
                  << programs[i].ToString() << verdicts[i].text;
  }
  std::cout << absl::StrJoin(tally, " ")
            << " agree, too large, refused by plain tensors, refused, wrong\n";
  EXPECT_EQ(tally[Verdict::kWrong], 0u);
  // Failing programs test no results, so half must run.
  EXPECT_GE(2 * tally[Verdict::kAgrees], count) << "programs too few that run";
  // At most a quarter on two axes, plus four standard deviations.
  EXPECT_LE(tally[Verdict::kRefused], 0.25 * count + 4 * std::sqrt(count / 5.3))
      << "too many are refused";
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, RandomProgramsTest,
    testing::Values(std::vector<int>{1}, std::vector<int>{2},
                    std::vector<int>{3}, std::vector<int>{4},
                    std::vector<int>{5}, std::vector<int>{2, 2},
                    std::vector<int>{3, 1}),
    [](const auto& info) {
      return absl::StrCat("Of", absl::StrJoin(info.param, "By"));
    });

}  // namespace
}  // namespace crosshatch
