// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_info.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// "mpirun 1/4 local 1/2 at host:port with token", or the error.
std::string Detect(const Environment& environment) {
  const auto info = DetectLaunch(environment);
  if (!info.ok()) return std::string(info.status().message());
  if (!info->wrong.empty()) return info->wrong;
  return absl::StrCat(
      info->launcher_name, " ", info->rank, "/", info->size, " local ",
      info->local_rank, "/", info->local_size, " at ", info->coordinator.host,
      ":", info->coordinator.port, " with ", info->coordinator.token);
}

struct Case {
  const char* name;
  Environment environment;
  const char* result;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

class LaunchInfoTest : public testing::TestWithParam<Case> {};

TEST_P(LaunchInfoTest, DetectsTheRankOrTheWrongVariable) {
  EXPECT_EQ(Detect(GetParam().environment), GetParam().result);
}

/// `base` with `changes`; an empty change unsets, "EMPTY" sets to nothing.
Environment With(Environment base, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      base.erase(name);
    } else {
      base[name] = value == "EMPTY" ? "" : value;
    }
  }
  return base;
}

const Environment& Mpi() {
  static const auto& base =
      *new Environment{{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"OMPI_MCA_orte_hnp_uri",
                        "7.0;tcp://10.1.0.1,10.2.0.1:80;tcp6://[fd00::2]:81"},
                       {"PMIX_NAMESPACE", "77"},
                       {"PMIX_RANK", "1"}};
  return base;
}

const Environment& Torchrun() {
  static const auto& base =
      *new Environment{{"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "a"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RUN_ID", "none"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"}};
  return base;
}

const Environment& Plain() {
  static const auto& base = *new Environment{{"RANK", "3"},
                                             {"WORLD_SIZE", "4"},
                                             {"MASTER_ADDR", "a"},
                                             {"MASTER_PORT", "29500"}};
  return base;
}

const Environment& Slurm() {
  static const auto& base =
      *new Environment{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "8"},
                       {"SLURM_STEP_NUM_TASKS", "8"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_JOB_ID", "12"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_STEP_NODELIST", "n[07-09,12],m1"}};
  return base;
}

/// What mpirun gives each job, but shorter.
std::pair<const std::string, std::string> Bits() {
  return {"OMPI_MCA_orte_precondition_transports", "12cd-56ab"};
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Good, LaunchInfoTest,
    testing::Values(
        Case{"Alone", {}, "nobody 0/1 local -1/-1 at :0 with "},
        Case{"AloneInASlurmShell",
             {{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "8"}},
             "nobody 0/1 local -1/-1 at :0 with "},
        Case{"AloneInASlurmBatchScript",
             {{"SLURM_JOB_ID", "12"},
              {"SLURM_NTASKS", "8"},
              {"SLURM_PROCID", "0"}},
             "nobody 0/1 local -1/-1 at :0 with "},
        Case{"Mpirun", Mpi(),
             "mpirun 1/4 local 1/2 at 10.1.0.1,10.2.0.1,[fd00::2]:26826 with "
             "job mpi/77"},
        Case{"MpirunWithoutLocalRanks",
             With(Mpi(), {{"OMPI_COMM_WORLD_LOCAL_RANK", ""},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", ""}}),
             "mpirun 1/4 local -1/-1 at 10.1.0.1,10.2.0.1,[fd00::2]:26826 with "
             "job mpi/77"},
        Case{"MpirunWithALocalRankAlone",
             With(Mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", ""}}),
             "mpirun 1/4 local 1/-1 at 10.1.0.1,10.2.0.1,[fd00::2]:26826 with "
             "job mpi/77"},
        Case{"MpirunWithRandomBits", With(Mpi(), {Bits()}),
             "mpirun 1/4 local 1/2 at 10.1.0.1,10.2.0.1,[fd00::2]:28290 with "
             "-56ab"},
        Case{"MpirunOnOneHost",
             With(Mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
             "mpirun 1/4 local 1/4 at 127.184.248.43:26826 with job mpi/77"},
        Case{"MpirunOnOneHostWithRandomBits",
             With(Mpi(), {Bits(), {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
             "mpirun 1/4 local 1/4 at 127.221.224.116:28290 with -56ab"},
        Case{"MpirunOnAddressSix",
             With(Mpi(),
                  {{"OMPI_MCA_orte_hnp_uri", "7.0;tcp6://[fd::2,fd::3]:81"}}),
             "mpirun 1/4 local 1/2 at [fd::2],[fd::3]:28926 with job mpi/77"},
        Case{"MpirunInSlurm", With(Mpi(), Slurm()),
             "mpirun 1/4 local 1/2 at 10.1.0.1,10.2.0.1,[fd00::2]:26826 with "
             "job mpi/77"},
        Case{"MpirunAndEqualVariables",
             With(Mpi(), {{"RANK", "1"}, {"WORLD_SIZE", "4"}}),
             "mpirun 1/4 local 1/2 at 10.1.0.1,10.2.0.1,[fd00::2]:26826 with "
             "job mpi/77"},
        Case{"MpirunWithACoordinator",
             With(Mpi(), {{"CROSSHATCH_COORDINATOR", "a:7"}}),
             "mpirun 1/4 local 1/2 at a:7 with job mpi/77"},
        Case{"Torchrun", Torchrun(),
             "torchrun 3/4 local 1/2 at a:29501 with job a:29500/none/2"},
        Case{"TorchrunInSlurm", With(Torchrun(), Slurm()),
             "torchrun 3/4 local 1/2 at a:29501 with job a:29500/none/2"},
        Case{"Plain", Plain(),
             "a launcher of processes 3/4 local -1/-1 at a:29500 with job "
             "a:29500"},
        Case{"PlainWithALocalRank", With(Plain(), {{"LOCAL_RANK", "0"}}),
             "a launcher of processes 3/4 local 0/-1 at a:29500 with job "
             "a:29500"},
        Case{"PlainInSlurm", With(Plain(), Slurm()),
             "a launcher of processes 3/4 local -1/-1 at a:29500 with job "
             "a:29500"},
        Case{"PlainWithAToken",
             With(Plain(), {{"CROSSHATCH_JOB_TOKEN", "secret"}}),
             "a launcher of processes 3/4 local -1/-1 at a:29500 with secret"},
        Case{"PlainWithAnId", With(Plain(), {{"CROSSHATCH_JOB_ID", "7"}}),
             "a launcher of processes 3/4 local -1/-1 at a:29500 with job "
             "a:29500 id 7"},
        Case{"PlainOnAddressSix",
             With(Plain(), {{"CROSSHATCH_COORDINATOR", "[::1]:80"}}),
             "a launcher of processes 3/4 local -1/-1 at [::1]:80 with job "
             "a:29500"},
        Case{
            "PlainOnBareAddressSix", With(Plain(), {{"MASTER_ADDR", "fd::1"}}),
            "a launcher of processes 3/4 local -1/-1 at [fd::1]:29500 with job "
            "[fd::1]:29500"},
        Case{
            "PlainOnAddressSixInBrackets",
            With(Plain(), {{"MASTER_ADDR", "[fd::1]"}}),
            "a launcher of processes 3/4 local -1/-1 at [fd::1]:29500 with job "
            "[fd::1]:29500"},
        Case{"Srun", Slurm(),
             "srun 5/8 local 1/-1 at n07:28213 with job slurm/12/0"},
        Case{"SrunOfFewerTasks", With(Slurm(), {{"SLURM_NTASKS", "99"}}),
             "srun 5/8 local 1/-1 at n07:28213 with job slurm/12/0"},
        Case{"SrunOfAnOldSlurm", With(Slurm(), {{"SLURM_STEP_NUM_TASKS", ""}}),
             "srun 5/8 local 1/-1 at n07:28213 with job slurm/12/0"},
        Case{"SrunWithPmix", With(Slurm(), {{"PMIX_RANK", "5"}}),
             "srun 5/8 local 1/-1 at n07:28213 with job slurm/12/0"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Bad, LaunchInfoTest,
    testing::Values(
        Case{"MpirunWithoutASize", With(Mpi(), {{"OMPI_COMM_WORLD_SIZE", ""}}),
             "OMPI_COMM_WORLD_SIZE is not set, which mpirun sets next to "
             "OMPI_COMM_WORLD_LOCAL_RANK=1: set it, or unset all of them to "
             "run alone"},
        Case{"MpirunWithoutARank", With(Mpi(), {{"OMPI_COMM_WORLD_RANK", ""}}),
             "OMPI_COMM_WORLD_RANK is not set, which mpirun sets next to "
             "OMPI_COMM_WORLD_LOCAL_RANK=1: set it, or unset all of them to "
             "run alone"},
        Case{"MpirunOutside", With(Mpi(), {{"OMPI_COMM_WORLD_RANK", "4"}}),
             "OMPI_COMM_WORLD_RANK=4: must be a rank from 0 to 3, since "
             "OMPI_COMM_WORLD_SIZE=4"},
        Case{"MpirunOfNobody", With(Mpi(), {{"OMPI_COMM_WORLD_SIZE", "0"}}),
             "OMPI_COMM_WORLD_SIZE=0: must be a whole number from 1 to "
             "1048576"},
        Case{"MpirunWithALocalSizeAlone",
             With(Mpi(), {{"OMPI_COMM_WORLD_LOCAL_RANK", ""}}),
             "OMPI_COMM_WORLD_LOCAL_RANK is not set, which mpirun sets next to "
             "OMPI_COMM_WORLD_LOCAL_SIZE=2: set it, or unset all of them to "
             "run alone"},
        Case{"MpirunOfFewerThanItsHost",
             With(Mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}),
             "OMPI_COMM_WORLD_LOCAL_SIZE=5: a host cannot have more than the 4 "
             "processes of the job"},
        Case{"MpirunOnHostsWithoutAnAddress",
             With(Mpi(), {{"OMPI_MCA_orte_hnp_uri", ""}}),
             "OMPI_MCA_orte_hnp_uri has no address of mpirun's host: set "
             "CROSSHATCH_COORDINATOR=HOST:PORT, an address of rank 0"},
        Case{"MpirunAndAnotherRank", With(Mpi(), {{"RANK", "2"}}),
             "RANK=2 and OMPI_COMM_WORLD_RANK=1: two launchers disagree; unset "
             "RANK, or start without mpirun"},
        Case{"MpirunAndAnotherSize", With(Mpi(), {{"WORLD_SIZE", "2"}}),
             "WORLD_SIZE=2 and OMPI_COMM_WORLD_SIZE=4: two launchers disagree; "
             "unset WORLD_SIZE, or start without mpirun"},
        Case{"PlainWithoutARank", With(Plain(), {{"RANK", ""}}),
             "RANK is not set, which a launcher of processes sets next to "
             "MASTER_ADDR=a: set it, or unset all of them to run alone"},
        Case{
            "PlainWithoutASize", With(Plain(), {{"WORLD_SIZE", ""}}),
            "WORLD_SIZE is not set, which a launcher of processes sets next to "
            "MASTER_ADDR=a: set it, or unset all of them to run alone"},
        Case{"PlainWithoutAnAddress", With(Plain(), {{"MASTER_ADDR", ""}}),
             "MASTER_ADDR is not set, which a launcher of processes sets "
             "next to MASTER_PORT=29500: set it, or unset all of them to run "
             "alone"},
        Case{
            "PlainWithoutAPort", With(Plain(), {{"MASTER_PORT", ""}}),
            "MASTER_PORT is not set, which a launcher of processes sets "
            "next to MASTER_ADDR=a: set it, or unset all of them to run alone"},
        Case{"PlainWithAnEmptyAddress",
             With(Plain(), {{"MASTER_ADDR", "EMPTY"}}),
             "MASTER_ADDR is empty, which a launcher of processes sets next to "
             "MASTER_PORT=29500: set it, or unset all of them to run alone"},
        Case{
            "AnAddressAlone",
            {{"MASTER_ADDR", "a"}},
            "WORLD_SIZE is not set, which a launcher of processes sets next to "
            "MASTER_ADDR=a: set it, or unset all of them to run alone"},
        Case{"PlainRankIsTheSize", With(Plain(), {{"RANK", "4"}}),
             "RANK=4: must be a rank from 0 to 3, since WORLD_SIZE=4"},
        Case{"PlainRankIsNoNumber", With(Plain(), {{"RANK", "x"}}),
             "RANK=x: must be a rank from 0 to 3, since WORLD_SIZE=4"},
        Case{"PlainRankIsEmpty", With(Plain(), {{"RANK", "EMPTY"}}),
             "RANK is empty, which a launcher of processes sets next to "
             "MASTER_ADDR=a: set it, or unset all of them to run alone"},
        Case{"PlainRankIsAFraction", With(Plain(), {{"RANK", "1.5"}}),
             "RANK=1.5: must be a rank from 0 to 3, since WORLD_SIZE=4"},
        Case{"PlainRankIsNegative", With(Plain(), {{"RANK", "-1"}}),
             "RANK=-1: must be a rank from 0 to 3, since WORLD_SIZE=4"},
        Case{"PlainSizeIsNegative", With(Plain(), {{"WORLD_SIZE", "-4"}}),
             "WORLD_SIZE=-4: must be a whole number from 1 to 1048576"},
        Case{"PlainSizeIsHuge", With(Plain(), {{"WORLD_SIZE", "99999999999"}}),
             "WORLD_SIZE=99999999999: must be a whole number from 1 to "
             "1048576"},
        Case{"PlainPortIsNoNumber", With(Plain(), {{"MASTER_PORT", "http"}}),
             "MASTER_PORT=http: must be a whole number from 1 to 65535"},
        Case{"PlainPortIsZero", With(Plain(), {{"MASTER_PORT", "0"}}),
             "MASTER_PORT=0: must be a whole number from 1 to 65535"},
        Case{"PlainPortIsTooLarge", With(Plain(), {{"MASTER_PORT", "65536"}}),
             "MASTER_PORT=65536: must be a whole number from 1 to 65535"},
        Case{"TorchrunPortHasNoNext",
             With(Torchrun(), {{"MASTER_PORT", "65535"}}),
             "MASTER_PORT=65535: must be a whole number from 1 to 65534"},
        Case{"TorchrunWithoutARank", With(Torchrun(), {{"RANK", ""}}),
             "RANK is not set, which torchrun sets next to LOCAL_RANK=1: set "
             "it, or unset all of them to run alone"},
        Case{"TorchrunLocalRankOutside",
             With(Torchrun(), {{"LOCAL_RANK", "2"}}),
             "LOCAL_RANK=2: must be a rank from 0 to 1, since "
             "LOCAL_WORLD_SIZE=2"},
        Case{"TorchrunLocalSizeAlone", With(Torchrun(), {{"LOCAL_RANK", ""}}),
             "LOCAL_RANK is not set, which torchrun sets next to "
             "LOCAL_WORLD_SIZE=2: set it, or unset all of them to run alone"},
        Case{"PlainLocalRankBeyondTheWorld",
             With(Plain(), {{"LOCAL_RANK", "4"}}),
             "LOCAL_RANK=4: must be a whole number from 0 to 3"},
        Case{
            "SrunWithoutASize",
            With(Slurm(), {{"SLURM_NTASKS", ""}, {"SLURM_STEP_NUM_TASKS", ""}}),
            "SLURM_NTASKS is not set, which srun sets next to SLURM_LOCALID=1: "
            "set it, or unset all of them to run alone"},
        Case{"SrunOutside", With(Slurm(), {{"SLURM_PROCID", "8"}}),
             "SLURM_PROCID=8: must be a rank from 0 to 7, since "
             "SLURM_STEP_NUM_TASKS=8"},
        Case{"SrunWithoutAJob", With(Slurm(), {{"SLURM_JOB_ID", ""}}),
             "SLURM_JOB_ID is not set, which srun sets next to "
             "SLURM_LOCALID=1: set it, or unset all of them to run alone"},
        Case{"SrunWithoutHosts", With(Slurm(), {{"SLURM_STEP_NODELIST", ""}}),
             "SLURM_STEP_NODELIST is not set, which srun sets next to "
             "SLURM_LOCALID=1: set it, or unset all of them to run alone"},
        Case{"SrunWithABadListOfHosts",
             With(Slurm(), {{"SLURM_STEP_NODELIST", "n[01-04"}}),
             "SLURM_STEP_NODELIST=n[01-04: names no host; it must be a list "
             "such as node[01-04]"},
        Case{"SrunAndAnotherPmixRank", With(Slurm(), {{"PMIX_RANK", "4"}}),
             "PMIX_RANK=4 and SLURM_PROCID=5: two launchers disagree; unset "
             "PMIX_RANK, or start without srun"},
        Case{"TokenIsEmpty", With(Plain(), {{"CROSSHATCH_JOB_TOKEN", "EMPTY"}}),
             "CROSSHATCH_JOB_TOKEN is empty: give it a secret, the same on all "
             "ranks, or unset it"},
        Case{"CoordinatorWithoutAPort",
             With(Plain(), {{"CROSSHATCH_COORDINATOR", "a"}}),
             "CROSSHATCH_COORDINATOR=a: must be HOST:PORT of rank 0, with a "
             "port from 1 to 65535"},
        Case{"CoordinatorWithoutAHost",
             With(Plain(), {{"CROSSHATCH_COORDINATOR", ":7"}}),
             "CROSSHATCH_COORDINATOR=:7: must be HOST:PORT of rank 0, with a "
             "port from 1 to 65535"}),
    NameOf);

TEST(DetectLaunchTest, MpiKnowsPeersOfMpirunAndOfSlurmWithPmix) {
  const auto knows = [](const Environment& environment) {
    return DetectLaunch(environment)->mpi_knows_peers;
  };
  EXPECT_TRUE(knows(Mpi()));
  EXPECT_TRUE(knows(With(Slurm(), {{"PMIX_RANK", "5"}})));
  EXPECT_FALSE(knows(Slurm()));
  EXPECT_FALSE(knows(Torchrun()));
  EXPECT_FALSE(knows(Plain()));
}

TEST(DetectLaunchTest, ARankThatCanJoinDoesSoToReportWhatIsWrong) {
  for (const Environment& environment :
       {With(Mpi(), {{"RANK", "2"}}), With(Plain(), {{"LOCAL_RANK", "4"}}),
        With(Mpi(), {{"OMPI_COMM_WORLD_LOCAL_RANK", "9"}}),
        With(Slurm(), {{"SLURM_LOCALID", "9"}}),
        With(Slurm(), {{"PMIX_RANK", "4"}}),
        With(Slurm(), {{"CROSSHATCH_JOB_TOKEN", "EMPTY"}}),
        With(Torchrun(), {{"CROSSHATCH_COORDINATOR", "a"}})}) {
    const auto info = DetectLaunch(environment);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_NE(info->wrong, "");
    EXPECT_TRUE(info->is_rank());
  }
}

TEST(DetectLaunchTest, AProcessWithoutAPlaceJoinsIfItCanFindTheJob) {
  const auto place = [](const Environment& environment) -> std::string {
    const auto info = DetectLaunch(environment);
    if (!info.ok()) return "none";
    EXPECT_FALSE(info->is_rank());
    EXPECT_EQ(info->coordinator.port, 29500);
    return absl::StrCat(info->rank, "/", info->size);
  };
  EXPECT_EQ(place(With(Plain(), {{"WORLD_SIZE", ""}})), "3/0");
  EXPECT_EQ(place(With(Plain(), {{"RANK", "x"}})), "-1/4");
  EXPECT_EQ(place(With(Plain(), {{"RANK", "4"}})), "4/4");
  EXPECT_EQ(place(With(Plain(), {{"MASTER_ADDR", ""}})), "none");
  EXPECT_EQ(place(With(Mpi(), {{"OMPI_COMM_WORLD_RANK", "4"}})), "none");
}

TEST(FirstHostTest, ReadsSlurmsLists) {
  EXPECT_EQ(FirstHost("a"), "a");
  EXPECT_EQ(FirstHost("a,b"), "a");
  EXPECT_EQ(FirstHost("a,n[1-2]"), "a");
  EXPECT_EQ(FirstHost("n[01-04]"), "n01");
  EXPECT_EQ(FirstHost("n[3,5-6],x"), "n3");
  EXPECT_EQ(FirstHost("n[3]-ib,x"), "n3-ib");
  EXPECT_EQ(FirstHost("rack[2-3]n[07-09,12],x"), "rack2n07");
  EXPECT_EQ(FirstHost("rack[2-3,5]n4,x[1]"), "rack2n4");
  EXPECT_EQ(FirstHost("n[3"), "");
  EXPECT_EQ(FirstHost("n[3]m["), "");
  EXPECT_EQ(FirstHost("n[]"), "");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(ParseEndpointTest, ReadsHostsAndPorts) {
  EXPECT_EQ(ParseEndpoint("a:7")->host, "a");
  EXPECT_EQ(ParseEndpoint("a:7")->port, 7);
  EXPECT_EQ(ParseEndpoint("fd::1:7")->host, "[fd::1]");
  for (const char* wrong : {"", "a", ":7", "a:", "a:0", "a:65536", "a:x"}) {
    EXPECT_FALSE(ParseEndpoint(wrong).ok()) << wrong;
  }
}

TEST(DetectLaunchTest, BracketsAreForBareAddresses) {
  EXPECT_EQ(Bracketed("::1"), "[::1]");
  EXPECT_EQ(Bracketed("[::1]"), "[::1]");
  EXPECT_EQ(Bracketed("a"), "a");
  EXPECT_EQ(Bracketed("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(Bracketed(""), "");
}

TEST(DetectLaunchTest, TheFirstOfAHostReports) {
  EXPECT_TRUE(IsFirstOfHost({}));
  EXPECT_TRUE(IsFirstOfHost({{"RANK", "3"}}));
  EXPECT_TRUE(IsFirstOfHost({{"LOCAL_RANK", "0"}}));
  EXPECT_FALSE(IsFirstOfHost({{"LOCAL_RANK", "1"}}));
  EXPECT_FALSE(IsFirstOfHost({{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}));
  EXPECT_FALSE(IsFirstOfHost(Slurm()));
  EXPECT_TRUE(IsFirstOfHost(With(Slurm(), {{"SLURM_LOCALID", "0"}})));
}

}  // namespace
}  // namespace crosshatch
