#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts jobs of processes wrongly: each prints one line for the whole job.

usage: bad_start_test.py PROGRAM OTHER_PROGRAM
where both are builds of probe_program_testutil.cc with different build ids.
"""

import os
import socket
import subprocess
import sys
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
import beside  # noqa: E402
from held_port import bind, hold_port  # noqa: E402
from mpi_place import environment_in, make_place  # noqa: E402
from own_lines import own_lines  # noqa: E402

OTHER, PROGRAM = sys.argv.pop(), sys.argv.pop()
NAME = os.path.basename(PROGRAM)
LONG = 60


# How long rank 0 waits for missing ranks.
START = "--start_timeout=10s"


def dials(pid):
    """Returns whether the process looks for the coordinator: its client has an
    eventfd."""
    fds = f"/proc/{pid}/fd"
    for fd in os.listdir(fds):
        try:
            if os.readlink(os.path.join(fds, fd)) == "anon_inode:[eventfd]":
                return True
        except OSError:
            continue  # The process has closed it.
    return False


class BadStartTest(unittest.TestCase):
    def setUp(self):
        self.port = hold_port(self)
        self.dir = make_place(self)
        self.environment = environment_in(self.dir)

    def start(self, rank, size, *flags, program=PROGRAM, under=(), **variables):
        environment = {
            **self.environment, "RANK": str(rank),
            "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port), **variables}
        process = subprocess.Popen(
            [*under, program, *flags],
            env={k: v for k, v in environment.items() if v is not None},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def torchrun(self, rank, size, *flags, **variables):
        """Returns variables as of torchrun, whose own port is the previous one."""
        return self.start(rank, size, *flags, **{
            "MASTER_PORT": str(self.port - 1), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0", **variables})

    def srun(self, rank, size, *flags, **variables):
        """Returns variables as of srun --mpi=none, for a job that no other test
        has."""
        return self.start(rank, size, *flags, **{
            "RANK": None, "WORLD_SIZE": None, "MASTER_ADDR": None,
            "MASTER_PORT": None, "SLURM_JOB_ID": str(self.port),
            "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_NTASKS": str(size), "SLURM_STEP_NODELIST": "localhost",
            "CROSSHATCH_COORDINATOR": f"127.0.0.1:{self.port}", **variables})

    def mpirun(self, size, *flags, **variables):
        """Returns the lines that a failing job of mpirun prints."""
        run = subprocess.run(
            ["mpirun", "--oversubscribe", "-np", str(size), PROGRAM, *flags],
            capture_output=True, text=True, timeout=LONG,
            env={**self.environment, **variables})
        self.assertNotEqual(run.returncode, 0)
        return [line for line in run.stderr.splitlines()
                if "program: " in line]

    def start_early(self, rank, size, *flags, **variables):
        """Starts a rank that already looks for rank 0, twice a second, so that
        the time of its start does not matter."""
        process = self.start(rank, size, *flags, **variables)
        while not dials(process.pid):
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        return process

    def line(self, processes):
        """Returns the one line that all of them print when they fail."""
        said = ""
        for process in processes:
            out, error = process.communicate(timeout=LONG)
            self.assertEqual((process.returncode, out), (1, ""), error)
            said += error
        own = own_lines(said, NAME)
        self.assertEqual(len(own), 1, said)
        return own[0] + "\n"

    def test_one_process_of_a_host_prints_what_abseil_prints(self):
        for flag, expected in [
                ("--help", "--engine (What runs the ranks."),
                ("--engnie=fake", "ERROR: Unknown command line flag 'engnie'"),
                ("--timeout=soon", "Illegal value 'soon' specified for flag "
                 "'timeout'"),
                ("--timeout", "Missing the value for the flag 'timeout'"),
                ("--device=gpu", "must be one of cpu cuda"),
                ("--engine=nccl", "must be one of auto local processes fake")]:
            with self.subTest(flag=flag):
                said = ""
                for rank in range(2):
                    process = self.torchrun(rank, 2, flag)
                    said += "".join(process.communicate(timeout=LONG))
                    self.assertEqual(process.returncode, 1)
                self.assertEqual(said.count(expected), 1, said)

    def test_twice_the_same_rank(self):
        for twice in range(3):
            with self.subTest(rank=twice):
                self.port = hold_port(self)
                # Rank 3 is missing, so that the others still run.
                ranks = [self.start(rank, 4) for rank in (0, 1, 2, twice)]
                self.assertIn(f"two processes are rank {twice}: process ",
                              self.line(ranks))

    def test_worlds_of_other_sizes(self):
        line = self.line([self.start(0, 3), self.start(1, 2), self.start(2, 3)])
        self.assertIn("rank 1 (process ", line)
        self.assertIn("was started for a world of 2 ranks", line)

    def test_another_program(self):
        line = self.line([self.start(0, 2), self.start(1, 2, program=OTHER)])
        self.assertIn("rank 1 (process ", line)
        self.assertIn("runs another program (build ", line)

    def test_a_rank_does_not_come(self):
        early = self.start_early(2, 3)
        line = self.line([self.start(0, 3, START), early])
        self.assertIn("rank 1 has not come within ", line)

    def test_rank_0_does_not_come(self):
        # For a host of ranks 2 and 3, and without numbers from a launcher.
        for variables, ranks in ({"LOCAL_RANK": "0"}, [2]), ({}, [2, 3]):
            with self.subTest(variables=variables):
                flag = "--start_timeout=500ms"
                processes = [self.start(2, 4, flag, **variables),
                             self.start(3, 4, flag, **{n: "1" for n in variables})]
                said = ""
                for process in processes:
                    said += process.communicate(timeout=LONG)[1]
                    self.assertEqual(process.returncode, 1)
                own = own_lines(said, NAME)
                self.assertEqual([line[:8] for line in own],
                                 [f"[rank {rank}]" for rank in ranks])
                for line in own:
                    self.assertIn(f"no process listened on 127.0.0.1:{self.port} "
                                  "within 500ms", line)

    def test_another_token(self):
        # It may belong to another job, so it only makes this one fail as a missing rank.
        early = self.start_early(1, 2, CROSSHATCH_JOB_TOKEN="b")
        rank_0 = self.start(0, 2, START, CROSSHATCH_JOB_TOKEN="a")
        self.assertRegex(
            self.line([early]), r"^\[rank 1\] .*was refused by the coordinator: "
            "the token is not this job's: give all ranks the same CROSSHATCH_JOB_TOKEN")
        line = self.line([rank_0])
        self.assertIn("rank 1 has not come within ", line)
        self.assertIn("1 connection without this job's token came: give all "
                      "ranks the same CROSSHATCH_JOB_TOKEN", line)

    def test_a_rank_beyond_the_last(self):
        line = self.line([self.start(0, 2), self.start(5, 2)])
        self.assertIn("rank 5 (process ", line)
        self.assertIn("is outside of the world of 2 ranks", line)
        # Without a job it reports the error itself.
        self.port = hold_port(self)
        line = self.line([self.start(1, 1, "--start_timeout=300ms")])
        self.assertIn("RANK=1: must be a rank from 0 to 0", line)

    def test_addresses_of_ip_6(self):
        line = self.line([self.start(0, 2, "--timeout=-1s", MASTER_ADDR="::1"),
                          self.start(1, 2, "--timeout=-1s", MASTER_ADDR="[::1]")])
        self.assertIn("--timeout: must be above zero", line)

    def test_the_rank_that_fails_is_named_once(self):
        for failing in 0, 2:
            with self.subTest(rank=failing):
                self.port = hold_port(self)
                line = self.line([
                    self.start(r, 3, "--timeout=30s",
                               PROBE_FAULT_RANK=str(failing))
                    for r in range(3)])
                self.assertTrue(
                    line.endswith(f"program: rank {failing}: out of luck\n"),
                    line)

    def test_the_port_is_taken(self):
        with bind(self.port) as listening:
            listening.listen()
            line = self.line([self.start(0, 1, "--start_timeout=300ms")])
            self.assertIn(f"cannot listen on 127.0.0.1:{self.port}", line)

    def test_ucx_does_not_start(self):
        line = self.line([self.start(0, 2),
                          self.start(1, 2, UCX_TLS="telegraph")])
        self.assertIn("rank 1: UCX does not start: ucp_init: No such device",
                      line)

    def test_transports(self):
        line = self.line([self.start(rank, 2, "--transport=mpi")
                          for rank in range(2)])
        self.assertIn("--transport=mpi: MPI cannot join processes that ", line)
        line = self.line([self.start(0, 2, "--transport=ucx"),
                          self.start(1, 2)])
        self.assertIn("and rank 0 with --transport=ucx", line)

    def test_variables(self):
        for variables, expected in [
                ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
                ({"RANK": "x"}, "RANK=x: must be a rank from 0 to 0"),
                ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
                ({"MASTER_PORT": "0"}, "MASTER_PORT=0: must be"),
                ({"CROSSHATCH_JOB_TOKEN": ""}, "CROSSHATCH_JOB_TOKEN is empty"),
                ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
                 "two launchers disagree")]:
            with self.subTest(variables=variables):
                self.assertIn(expected,
                              self.line([self.start(0, 1, **variables)]))

    def test_starts_that_are_right(self):
        for start in self.start, self.torchrun, self.srun:
            with self.subTest(start=start.__name__):
                self.port = hold_port(self)
                for process in [start(r, 2) for r in range(2)]:
                    out, error = process.communicate(timeout=LONG)
                    self.assertEqual((process.returncode, out), (0, ""), error)
                    self.assertEqual(own_lines(error, NAME), [])

    def test_torchrun(self):
        # Each has its own port, and its own message.
        jobs = []
        for variables, expected in [
                ({"RANK": None}, "RANK is not set, which torchrun sets next to"),
                ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two: must be"),
                ({"LOCAL_RANK": "9"}, "LOCAL_RANK=9: must be a rank from"),
                ({"LOCAL_RANK": None}, "LOCAL_RANK is not set, which torchrun"),
                ({"MASTER_PORT": "65535"},
                 "MASTER_PORT=65535: must be a whole number from 1 to 65534"),
                ({"PROBE_RANKS": "3"}, "torchrun started 2 processes")]:
            self.port = hold_port(self)
            jobs.append((variables, expected, [
                self.torchrun(r, 2, "--start_timeout=10s", **variables)
                for r in range(2)]))
        for variables, expected, ranks in jobs:
            with self.subTest(variables=variables):
                self.assertIn(expected, self.line(ranks))

    def test_srun(self):
        for variables, expected in [
                ({"SLURM_STEP_NUM_TASKS": None, "SLURM_NTASKS": None},
                 "SLURM_NTASKS is not set, which srun sets next to"),
                ({"SLURM_STEP_NUM_TASKS": "0"},
                 "SLURM_STEP_NUM_TASKS=0: must be a whole number from 1 to"),
                ({"SLURM_PROCID": "2"},
                 "SLURM_PROCID=2: must be a rank from 0 to 1"),
                ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID is not set"),
                ({"SLURM_STEP_NODELIST": "n[01-04"},
                 "SLURM_STEP_NODELIST=n[01-04: names no host"),
                ({"SLURM_LOCALID": "9"}, "SLURM_LOCALID=9: must be"),
                ({"PMIX_RANK": "7"}, "two launchers disagree; unset PMIX_RANK"),
                ({"PROBE_RANKS": "3"}, "srun started 2 processes")]:
            with self.subTest(variables=variables):
                self.port = hold_port(self)
                line = self.line([self.srun(r, 2, **variables)
                                  for r in range(2)])
                self.assertIn(expected, line)

    def test_srun_whose_mpi_does_not_connect_the_ranks(self):
        # Detected by PMIX_RANK.
        line = self.line([self.srun(r, 2, PMIX_RANK=str(r)) for r in range(2)])
        self.assertIn("start with a launcher that MPI knows", line)

    def test_variables_without_their_mpirun(self):
        ranks = [self.start(r, 2, RANK=None, WORLD_SIZE=None, MASTER_ADDR=None,
                            MASTER_PORT=None, OMPI_COMM_WORLD_RANK=str(r),
                            OMPI_COMM_WORLD_LOCAL_RANK=str(r),
                            OMPI_COMM_WORLD_LOCAL_SIZE="2",
                            OMPI_COMM_WORLD_SIZE="2") for r in range(2)]
        self.assertIn("start with a launcher that MPI knows", self.line(ranks))

    def test_rank_0_is_not_on_the_host_of_mpirun(self):
        def ranks(*flags, **variables):
            return [self.start(
                r, 2, "--start_timeout=30s", "--transport=ucx", *flags,
                RANK=None, WORLD_SIZE=None, MASTER_ADDR=None, MASTER_PORT=None,
                OMPI_COMM_WORLD_RANK=str(r), OMPI_COMM_WORLD_SIZE="2",
                OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="1",
                OMPI_MCA_orte_hnp_uri="7.0;tcp://198.51.100.1:80", **variables)
                for r in range(2)]

        line = self.line([ranks()[0]])
        self.assertRegex(
            line, r"rank 0's coordinator cannot listen on 198\.51\.100\.1:2\d{4}: "
            r".* CROSSHATCH_COORDINATOR=HOST:PORT, that are rank 0's and free")
        for process in ranks(CROSSHATCH_COORDINATOR=f"127.0.0.1:{self.port}"):
            out, error = process.communicate(timeout=LONG)
            self.assertEqual((process.returncode, out), (0, ""), error)

    def test_variables_of_all_ranks(self):
        for variables, expected in [
                ({"LOCAL_RANK": "9"}, "LOCAL_RANK=9: must be"),
                ({"CROSSHATCH_JOB_TOKEN": ""}, "CROSSHATCH_JOB_TOKEN is empty")]:
            with self.subTest(variables=variables):
                self.port = hold_port(self)
                ranks = [self.start(r, 4, **variables) for r in range(4)]
                self.assertIn(expected, self.line(ranks))
        # Without these variables no other process can be found.
        for variables, expected in [
                ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
                ({"MASTER_PORT": None}, "MASTER_PORT is not set"),
                ({"MASTER_PORT": "http"}, "MASTER_PORT=http: must be")]:
            with self.subTest(variables=variables):
                line = self.line([
                    self.start(r, 4, LOCAL_RANK=str(r), **variables)
                    for r in range(4)])
                self.assertIn(expected, line)

    def test_variables_of_one_rank(self):
        for variables, expected in [
                ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
                ({"RANK": None}, "RANK is not set"),
                ({"RANK": "x"}, "RANK=x: must be a rank from 0 to 3"),
                ({"RANK": "-1"}, "RANK=-1: must be a rank from 0 to 3"),
                ({"LOCAL_RANK": "9"}, "LOCAL_RANK=9: must be")]:
            with self.subTest(variables=variables):
                self.port = hold_port(self)
                ranks = [self.start(r, 4) for r in range(3)]
                ranks.append(self.start(3, 4, **variables))
                self.assertIn(expected, self.line(ranks))

    def test_a_variable_that_keeps_one_rank_from_the_others(self):
        address = f"127.0.0.1:{self.port}"
        elsewhere = str(hold_port(self))
        jobs = []
        for good, bad, expected in [
                ({"CROSSHATCH_COORDINATOR": address, "MASTER_PORT": elsewhere},
                 {"CROSSHATCH_COORDINATOR": "a", "MASTER_PORT": elsewhere},
                 "CROSSHATCH_COORDINATOR=a: must be HOST:PORT"),
                ({"CROSSHATCH_JOB_TOKEN": "secret"},
                 {"CROSSHATCH_JOB_TOKEN": ""},
                 "CROSSHATCH_JOB_TOKEN is empty")]:
            self.port = hold_port(self)
            early = [self.start_early(1, 3, **good),
                     self.start_early(2, 3, **bad)]
            jobs.append((expected, [self.start(0, 3, START, **good), *early]))
        for expected, ranks in jobs:
            with self.subTest(expected=expected):
                # Rank 0 names the missing rank, which reports the reason.
                said = [p.communicate(timeout=LONG)[1] for p in ranks]
                self.assertIn("rank 2 has not come within ", said[0])
                self.assertEqual(own_lines(said[1], NAME), [])
                self.assertIn(expected, said[2])

    def test_a_name_that_takes_long_to_resolve(self):
        slow = {"PROBE_SLOW_NAMES": "1500"}
        ranks = [self.start(r, 2, "--timeout=-1s", "--start_timeout=30s",
                            MASTER_ADDR="localhost", **(slow if r else {}))
                 for r in range(2)]
        self.assertIn("--timeout: must be above zero", self.line(ranks))

    def test_mpirun(self):
        for flags, variables, expected in [
                ([], {"RANK": "0"}, "two launchers disagree; unset RANK"),
                ([], {"WORLD_SIZE": "8"}, "two launchers disagree"),
                ([], {"CROSSHATCH_JOB_TOKEN": ""}, "TOKEN is empty"),
                ([], {"CROSSHATCH_COORDINATOR": "a"}, "must be HOST:PORT"),
                (["--timeout=-1s"], {}, "--timeout: must be above zero"),
                ([], {"PROBE_RANKS": "3"}, "mpirun started 4 processes")]:
            with self.subTest(flags=flags, variables=variables):
                said = self.mpirun(4, *flags, **variables)
                self.assertEqual(len(said), 1, said)
                self.assertIn(expected, said[0])

    def test_log_prefix(self):
        line = self.line([self.start(r, 2, "--log_prefix", PROBE_FAULT_RANK="1")
                          for r in range(2)])
        self.assertRegex(line, r"^\[rank 0\] .*program: rank 1: out of luck\n$")
        # Also if its flags do not match those of a run.
        self.port = hold_port(self)
        line = self.line([self.start(r, 2, "--log_prefix", "--timeout=-1s")
                          for r in range(2)])
        self.assertRegex(line, r"^\[rank 0\] .*must be above zero\n$")

    def test_flags(self):
        for flags, expected in [
                (["more"], '"more" is not a flag'),
                (["--timeout=-1s"], "--timeout: must be above zero"),
                (["--fake_rank=1"], "--fake_rank is for --engine=fake"),
                (["--stop_status=999"], "--stop_status=999: must be from 0")]:
            with self.subTest(flags=flags):
                # Wrong on all ranks, and reported once.
                self.port = hold_port(self)
                line = self.line([self.start(r, 2, *flags) for r in range(2)])
                self.assertIn(expected, line)

    def test_options_that_do_not_fit_are_reported_before_missing_devices(self):
        line = self.line([self.start(r, 2, "--device=cuda", PROBE_RANKS="4",
                                     CUDA_VISIBLE_DEVICES="")
                          for r in range(2)])
        self.assertIn("the program needs 4 ranks", line)

    def test_processes_without_a_launcher(self):
        runs = [subprocess.Popen([PROGRAM, "--engine=processes"], text=True,
                                 stderr=subprocess.PIPE,
                                 env={"PATH": os.environ["PATH"]})
                for _ in range(3)]
        for run in runs:
            said = run.communicate(timeout=LONG)[1]
            self.assertEqual(run.returncode, 1)
            self.assertIn("no launcher started this process as a rank", said)

    def test_another_number_of_ranks(self):
        line = self.line([self.start(r, 2, PROBE_RANKS="4") for r in range(2)])
        self.assertIn("the program needs 4 ranks, and a launcher of processes "
                      "started 2 processes: start 4", line)

    def test_no_device(self):
        flags = ["--device=cuda"]
        line = self.line([self.start(r, 2, *flags, CUDA_VISIBLE_DEVICES="")
                          for r in range(2)])
        self.assertRegex(line, r"--device=cuda: (this build has no code for "
                         r"CUDA: build it with --config=cuda|no CUDA device)")
        alone = subprocess.run([PROGRAM, *flags], capture_output=True,
                               text=True, timeout=LONG,
                               env={"PATH": os.environ["PATH"],
                                    "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual((alone.returncode, alone.stdout), (1, ""))
        self.assertIn("program: --device=cuda: ", alone.stderr)

    def test_other_ways_of_moving_data(self):
        line = self.line([self.start(0, 3), self.start(1, 3),
                          self.start(2, 3, "--deterministic")])
        self.assertTrue(line.endswith(
            ": rank 2: it runs with --device=cpu --deterministic, and rank 0 with "
            "--device=cpu: start all ranks with the same\n"), line)

    def test_other_options_of_the_program(self):
        line = self.line([self.start(r, 3, PROBE_LR="0.1" if r == 2 else "0.2")
                          for r in range(3)])
        self.assertTrue(line.endswith(
            ": rank 2: it runs with --lr=0.1, and rank 0 with --lr=0.2: start all "
            "ranks with the same\n"), line)

    def test_too_few_file_descriptors(self):
        few = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
        line = self.line([self.start(0, 2, under=few)])
        self.assertTrue(line.endswith(
            "program: rank 0's coordinator of a job of 2 ranks needs 258 file "
            "descriptors, a connection to each rank among them, and its process "
            "may have 64: raise the limit where it is started (ulimit -n 258)\n"),
            line)

    def test_an_error_of_prepare_on_one_rank(self):
        line = self.line(
            [self.start(r, 3, PROBE_BAD_RANK="2") for r in range(3)])
        self.assertTrue(line.endswith(": rank 2: the data are not here\n"), line)

    def test_a_rank_that_never_prepares_is_named(self):
        for rank in 0, 1:
            with self.subTest(rank=rank):
                self.port = hold_port(self)
                ranks = [self.start(r, 3, "--timeout=1s",
                                    PROBE_SLOW_RANK=str(rank))
                         for r in range(3)]
                printed = ""
                for process in ranks:
                    out, error = process.communicate(timeout=LONG)
                    self.assertEqual((process.returncode, out), (1, ""), error)
                    printed += error
                own = [line for line in own_lines(printed, NAME)
                       if "program: " in line]
                self.assertEqual(len(own), 1, printed)
                self.assertIn(f"program: rank {rank} did not come to the "
                              "exchange of 'options' within 1s", own[0])
                # Its watchdog ends it.
                self.assertIn(f"[rank {rank}] rank {rank} did not come back",
                              printed)

    def test_alone(self):
        run = subprocess.run([PROGRAM], capture_output=True, text=True,
                             env={"PATH": os.environ["PATH"]}, timeout=LONG)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))


if __name__ == "__main__":
    beside.main(at_once=5)
