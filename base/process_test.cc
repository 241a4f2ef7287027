// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/process.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// The status and the output of a process that ends with `line`.
struct Ending {
  int status = 0;
  std::string printed;
};

/// \param is_full whether the pipe takes nothing more.
Ending EndOf(const std::string& line, bool is_full) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    if (is_full) {
      fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
      const std::string page(PIPE_BUF, 'x');
      while (write(STDERR_FILENO, page.data(), page.size()) > 0) {
      }
      fcntl(STDERR_FILENO, F_SETFL, 0);
    }
    EndProcess(line);
  }
  close(ends[1]);
  Ending ending;
  EXPECT_EQ(waitpid(child, &ending.status, 0), child);
  std::string bytes(1 << 20, '\0');
  ssize_t count = 0;
  while ((count = read(ends[0], bytes.data(), bytes.size())) > 0) {
    ending.printed.append(bytes, 0, static_cast<size_t>(count));
  }
  close(ends[0]);
  return ending;
}

TEST(EndProcessTest, PrintsOneLineAndEndsWithStatus1) {
  const Ending ending = EndOf("rank 0 is late", /*is_full=*/false);
  ASSERT_TRUE(WIFEXITED(ending.status));
  EXPECT_EQ(WEXITSTATUS(ending.status), 1);
  EXPECT_EQ(ending.printed, "rank 0 is late\n");
}

TEST(EndProcessTest, PrintsNothingForAnEmptyLine) {
  EXPECT_EQ(EndOf("", /*is_full=*/false).printed, "");
}

TEST(EndProcessTest, CutsALineThatAPipeDoesNotTakeAtOnce) {
  const Ending ending = EndOf(std::string(5 << 20, 'e'), /*is_full=*/false);
  EXPECT_EQ(WEXITSTATUS(ending.status), 1);
  EXPECT_EQ(ending.printed.size(), static_cast<size_t>(PIPE_BUF));
  EXPECT_TRUE(ending.printed.ends_with("e ...\n"));
}

TEST(EndProcessTest, EndsWhereNobodyReads) {
  const Ending ending = EndOf("rank 0 is late", /*is_full=*/true);
  ASSERT_TRUE(WIFEXITED(ending.status));
  EXPECT_EQ(WEXITSTATUS(ending.status), 1);
  EXPECT_EQ(ending.printed.find("rank"), std::string::npos);
}

TEST(ThisMachineTest, IsANameAndTheIdOfAStart) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const std::string machine = ThisMachine();
  EXPECT_EQ(machine.substr(0, machine.find('\n')), name);
  EXPECT_THAT(
      machine.substr(machine.find('\n')),
      ::testing::MatchesRegex("\n[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"));
  EXPECT_EQ(ThisMachine(), machine);
  EXPECT_LT(machine.size(), 110u);
}

}  // namespace
}  // namespace crosshatch
