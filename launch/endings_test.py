#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ends jobs of processes: by signals, and by each way to lose a process.

usage: endings_test.py CLASS PROGRAM RUN_MPI_TEST_ON_TWO_HOSTS
where PROGRAM is a build of probe_program_testutil.cc. CLASS is EndingsTest, KillsTest or
KillsOnTwoHostsTest, with $CROSSHATCH_KILLS kills of each kind, or LossesTest,
which takes long because of timeouts.
"""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
import beside  # noqa: E402
from held_port import hold_port  # noqa: E402
from mpi_place import environment_in, make_place  # noqa: E402
from own_lines import own_lines  # noqa: E402

TWO_HOSTS, PROGRAM = sys.argv.pop(), sys.argv.pop()
NAME = os.path.basename(PROGRAM)
LONG = 60
# MPI may need the first one to start on a busy machine.
TIMES = ["--timeout=30s", "--heartbeat_timeout=10s"]


def children_of(parent):
    """Returns the living children of the process."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                # After the program's name in parentheses: state, parent.
                state, its_parent = file.read().rpartition(")")[2].split()[:2]
                if int(its_parent) == parent and state != "Z":
                    found.append(int(entry))
        except (OSError, IndexError):
            continue  # The process has ended.
    return found


def states_of(process):
    """Returns the states of the process's threads, e.g. "T" of a stopped one."""
    states = []
    for thread in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{thread}/stat", encoding="utf-8") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return states


def name_of(process):
    with open(f"/proc/{process}/comm", encoding="utf-8") as file:
        return file.read().rstrip()


def listening(process):
    """Returns the IPv4 addresses on which it listens, and "::" for IPv6."""
    inodes = set()
    for fd in os.listdir(f"/proc/{process}/fd"):
        try:
            link = os.readlink(f"/proc/{process}/fd/{fd}")
        except OSError:
            continue  # The process has closed it.
        if link.startswith("socket:["):
            inodes.add(link[len("socket:["):-1])
    addresses = []
    for table in "tcp", "tcp6":
        with open(f"/proc/{process}/net/{table}", encoding="utf-8") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] != "0A" or fields[9] not in inodes:
                    continue
                address = bytes.fromhex(fields[1].partition(":")[0])
                addresses.append(".".join(map(str, reversed(address)))
                                 if table == "tcp" else "::")
    return addresses


class Job:
    """Processes of PROGRAM and their output."""

    def __init__(self, test, commands, environments):
        self.processes = []
        for command, environment in zip(commands, environments):
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True)
            test.addCleanup(process.stderr.close)
            test.addCleanup(process.stdout.close)
            test.addCleanup(process.kill)
            self.processes.append(process)

    def await_running(self):
        line = self.processes[0].stdout.readline()
        if line != "runs\n":
            raise AssertionError(line + self.processes[0].stderr.read())

    def end(self):
        """Returns the exit statuses, and the ranks' own lines on stderr."""
        said = "".join(p.communicate(timeout=LONG)[1] for p in self.processes)
        return [p.returncode for p in self.processes], own_lines(said, NAME)


class JobsTest(unittest.TestCase):
    def setUp(self):
        self.dir = make_place(self)
        self.environment = environment_in(self.dir)

    def alone(self, *flags, **variables):
        return Job(self, [[PROGRAM, *flags]],
                   [{**self.environment, **variables}])

    def plain(self, ranks, *flags, **variables):
        return self.ranks_of_plain(range(ranks), ranks, *flags, **variables)

    def ranks_of_plain(self, started, ranks, *flags, **variables):
        port = str(hold_port(self))
        return Job(self, [[PROGRAM, *TIMES, *flags]] * len(started),
                   [{**self.environment, "RANK": str(rank),
                     "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, **variables}
                    for rank in started])

    def await_joining(self, process):
        """Waits until the process waits for others: its client has an eventfd."""
        until = time.monotonic() + LONG
        fds = f"/proc/{process.pid}/fd"
        while not any(os.path.realpath(os.path.join(fds, fd)).endswith("[eventfd]")
                      for fd in os.listdir(fds)):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)

    def mpirun(self, ranks, *flags, options=(), **variables):
        return Job(self, [["mpirun", "--oversubscribe", "-np", str(ranks),
                           *options, PROGRAM, *TIMES, *flags]],
                   [{**self.environment, **variables}])

    def two_hosts(self, *flags, options=(), last=None, **variables):
        """Returns the lines of four processes on two hosts, or None if not
        checked.

        Ends mpirun after a line with the pattern `last`: otherwise it would
        wait for the host on which a process was lost.
        """
        run = subprocess.Popen(
            [TWO_HOSTS, "4", "50", *options, PROGRAM, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**self.environment, **variables})
        self.addCleanup(run.stdout.close)
        lines = []
        for line in run.stdout:
            # Without mpirun's tags.
            lines.append(re.sub(r"^\[\d+,\d+\]<std(out|err)>:", "", line.rstrip()))
            if last is not None and re.search(last, line):
                for child in children_of(run.pid):
                    # It forwards the signal to mpirun.
                    if name_of(child) == "timeout":
                        os.kill(child, signal.SIGTERM)
        run.wait(timeout=LONG)
        if any("NOT CHECKED" in line for line in lines):
            print("\n".join(lines), file=sys.stderr)
            return None
        return lines


class EndingsTest(JobsTest):
    def stopped(self):
        """Returns and clears the ranks whose on_stop has run."""
        found = sorted(n for n in os.listdir(self.dir) if n.startswith("rank"))
        for name in found:
            os.remove(os.path.join(self.dir, name))
        return [int(name[4:]) for name in found]

    def test_on_stop_runs_on_each_rank(self):
        for which, flags, status in [(signal.SIGTERM, (), 143),
                                     (signal.SIGINT, ("--stop_status=0",), 0)]:
            with self.subTest(signal=which, flags=flags):
                job = self.plain(3, *flags, PROBE_STOP=self.dir)
                job.await_running()
                job.processes[1].send_signal(which)
                self.assertEqual(job.end(), ([status] * 3, []))
                self.assertEqual(self.stopped(), [0, 1, 2])

    def check_mpirun_passes_the_signal_on_after(self, seconds, options):
        # docs/running.md: after the seconds of this parameter.
        job = self.mpirun(2, "--stop_status=0", PROBE_STOP=self.dir,
                          options=options)
        job.await_running()
        began = time.time()
        job.processes[0].send_signal(signal.SIGTERM)
        _, said = job.end()
        came = [os.path.getmtime(os.path.join(self.dir, name)) - began
                for name in sorted(os.listdir(self.dir))
                if name.startswith("rank")]
        self.assertNotEqual(came, [])
        for waited in came:
            self.assertGreater(waited, seconds - 0.1)
        return said

    def test_mpirun_passes_the_signal_on_after_a_second(self):
        # One second may be too short for mpirun on a busy machine.
        self.check_mpirun_passes_the_signal_on_after(1, [])

    def test_mpirun_passes_the_signal_on_later(self):
        said = self.check_mpirun_passes_the_signal_on_after(
            5, ["--mca", "odls_base_sigkill_timeout", "5"])
        self.assertEqual([l for l in said if "program: " in l], [])
        self.assertEqual(self.stopped(), [0, 1])

    def test_a_signal_to_one_process_under_mpirun_stops_all_at_once(self):
        job = self.mpirun(2, "--stop_status=0", PROBE_STOP=self.dir)
        job.await_running()
        rank = children_of(job.processes[0].pid)[-1]
        os.kill(rank, signal.SIGTERM)
        # With the status of the run, without mpirun.
        self.assertEqual(job.end(), ([0], []))
        self.assertEqual(self.stopped(), [0, 1])

    def test_ranks_hold_no_lock_of_mpirun(self):
        # Left in PMIx's shared memory, it would block mpirun.
        job = self.mpirun(2, "--stop_status=0", PROBE_STOP=self.dir)
        job.await_running()
        ranks = children_of(job.processes[0].pid)
        self.assertEqual(len(ranks), 2)
        for rank in ranks:
            with open(f"/proc/{rank}/maps", encoding="utf-8") as file:
                self.assertNotIn("pmix_dstor", file.read())
        job.processes[0].send_signal(signal.SIGTERM)
        job.end()

    def test_on_stop_of_rank_threads(self):
        job = self.alone("--stop_status=0", PROBE_STOP=self.dir)
        job.await_running()
        job.processes[0].send_signal(signal.SIGTERM)
        self.assertEqual(job.end(), ([0], []))
        self.assertEqual(self.stopped(), [0])

    def test_an_error_of_on_stop_is_that_of_the_run(self):
        job = self.plain(2, PROBE_STOP=self.dir, PROBE_BAD_STOP="1")
        job.await_running()
        job.processes[0].send_signal(signal.SIGTERM)
        statuses, said = job.end()
        self.assertEqual(statuses, [1, 1])
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], "program: rank 1: the disk is full$")

    def test_a_signal_ends_a_process_that_waits_for_other_ranks(self):
        for rank in 0, 1:
            with self.subTest(rank=rank):
                job = self.ranks_of_plain([rank], 2)
                [process] = job.processes
                self.await_joining(process)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(job.end(), ([-signal.SIGTERM], []))

    def test_ranks_0_and_1_that_are_killed_together_are_reported(self):
        job = self.plain(4, PROBE_STOP=self.dir)
        job.await_running()
        for process in job.processes[:2]:
            process.kill()
        statuses, said = job.end()
        self.assertEqual(statuses, [-signal.SIGKILL] * 2 + [1, 1])
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"^\[rank [23]\] probe_program: rank 0: process "
                         r"\d+ on host \S+, which coordinates the job, died")

    def test_an_error_that_a_lost_rank_0_did_not_print_is_printed_by_its_rank(self):
        job = self.plain(2, PROBE_STOP=self.dir, PROBE_FAULT="wait",
                         PROBE_FAULT_RANK="1")
        job.await_running()
        # It learns of the error, and cannot announce it.
        job.processes[0].send_signal(signal.SIGSTOP)
        # One of its threads stops the others once it runs.
        while set(states_of(job.processes[0].pid)) != {"T"}:
            time.sleep(0.01)
        with open(os.path.join(self.dir, "go"), "x", encoding="utf-8"):
            pass
        time.sleep(2)
        job.processes[0].kill()
        statuses, said = job.end()
        self.assertEqual(statuses, [-signal.SIGKILL, 1])
        self.assertEqual(len(said), 2, said)
        self.assertRegex(said[0], r"^\[rank 1\] probe_program: rank 0: process .*died")
        self.assertEqual(said[1], "[rank 1] probe_program: out of luck")

    def test_a_job_continues_after_a_pause_of_all_ranks(self):
        job = self.plain(3, "--timeout=2s", "--stop_status=0",
                         PROBE_STOP=self.dir)
        job.await_running()
        for process in job.processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        for process in job.processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(1)
        job.processes[0].send_signal(signal.SIGTERM)
        self.assertEqual(job.end(), ([0] * 3, []))

    def test_nothing_of_the_job_listens_beyond_this_host(self):
        job = self.mpirun(3, "--stop_status=0", PROBE_STOP=self.dir)
        job.await_running()
        ranks = children_of(job.processes[0].pid)
        self.assertEqual(len(ranks), 3)
        for rank in ranks:
            self.assertEqual([address for address in listening(rank)
                              if not address.startswith("127.")], [])
        job.processes[0].send_signal(signal.SIGTERM)
        job.end()

    def test_all_that_ranks_print_arrives(self):
        lines = 20000
        job = self.mpirun(2, options=["--enable-recovery"],
                          PROBE_LINES=str(lines), PROBE_FAULT="error",
                          PROBE_FAULT_RANK="1")
        out = job.processes[0].communicate(timeout=LONG)[0]
        self.assertEqual(out.count("a line of rank 0\n"), lines)

    def test_on_stop_does_not_run_without_a_stop(self):
        self.assertEqual(self.alone(PROBE_HOSTS="1").end(), ([0], []))
        self.assertEqual(self.stopped(), [])

    def assert_lost(self, said, rank, ranks, all_answer=True):
        """Checks that one line names the process, and that each rank's activity
        follows: the last reported one of a rank that does not answer."""
        begin = [i for i, line in enumerate(said) if "program: " in line]
        self.assertEqual(len(begin), 1, said)
        first = said[begin[0]]
        self.assertRegex(
            first, rf"program: rank {rank}: process \d+ on host "
            rf"{re.escape(socket.gethostname())} died: its connection ended ")
        for other in range(ranks):
            line = said[begin[0] + 1 + other]
            if other == rank:
                self.assertRegex(line, rf"^  rank {other} \(process \d+ on ")
            else:
                # The last collective of each rank.
                self.assertRegex(
                    line, rf"^  rank {other} \(process \d+ on .*\): "
                    r"(in|computing, after) .*'stop'" +
                    ("" if all_answer else "|before its first collective"))

    def test_a_lost_process_is_named_with_all_activities(self):
        recovery = ["--enable-recovery"]
        for fault, start in [
                ("exit", lambda v: self.plain(3, **v)),
                ("abort", lambda v: self.mpirun(3, options=recovery, **v)),
                ("segv", lambda v: self.mpirun(3, options=recovery, **v)),
                # mpirun ends the others itself.
                ("_exit", lambda v: self.mpirun(3, **v))]:
            with self.subTest(fault=fault):
                began = time.monotonic()
                job = start({"PROBE_FAULT": fault, "PROBE_FAULT_RANK": "1"})
                _, said = job.end()
                self.assert_lost(said, 1, 3, all_answer=fault != "_exit")
                self.assertLess(time.monotonic() - began, LONG)

    def test_missing_memory_is_an_error_of_the_rank(self):
        job = self.mpirun(3, PROBE_FAULT="memory", PROBE_FAULT_RANK="2")
        _, said = job.end()
        said = [line for line in said if "program: " in line]
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], "program: rank 2: the rank.s function ran out of ")

    def test_a_check_that_fails_on_all_is_printed_once(self):
        for start, rank in (self.plain, "all"), (self.mpirun, "2"):
            job = start(4, PROBE_FAULT="check", PROBE_FAULT_RANK=rank)
            _, said = job.end()
            lines = [line for line in said if "check failed" in line]
            self.assertEqual(len(lines), 1, said)
            self.assertRegex(lines[0], r"program: rank \d: .*probe_program_"
                             r"testutil.cc:\d+: check failed: false of the probe")
            self.assertEqual(
                [l for l in said if "died: " in l or "did not" in l], [])

    def test_two_checks_that_fail_are_two_lines(self):
        job = self.plain(2, PROBE_FAULT="checks", PROBE_FAULT_RANK="all")
        _, said = job.end()
        lines = [line for line in said if "check failed" in line]
        self.assertEqual(len(lines), 2, said)
        for own in "of rank 0", "of the others":
            self.assertEqual(sum(own in line for line in lines), 1, said)

    def test_a_child_of_a_rank_outlives_a_good_end(self):
        path = os.path.join(self.dir, "child")
        self.assertEqual(self.plain(2, PROBE_CHILD=path).end(), ([0, 0], []))
        with open(path, encoding="utf-8") as file:
            child = int(file.read())
        # Raises an error if there is none.
        os.kill(child, signal.SIGTERM)

    def test_ranks_know_their_hosts(self):
        expected = [f"rank {r}: {r} of 3 on {socket.gethostname()}"
                    for r in range(3)]
        for job in (self.plain(3, PROBE_HOSTS="1"),
                    self.mpirun(3, PROBE_HOSTS="1"),
                    self.alone(PROBE_HOSTS="1", PROBE_RANKS="3")):
            said = "".join(p.communicate(timeout=LONG)[0]
                           for p in job.processes)
            self.assertEqual(sorted(said.splitlines()), expected)

    def test_two_hosts(self):
        said = self.two_hosts(PROBE_HOSTS="1")
        if said is None:
            return
        # mpirun may print its own warnings.
        self.assertEqual(sorted(l for l in said if l.startswith("rank ")), [
            "rank 0: 0 of 2 on near", "rank 1: 1 of 2 on near",
            "rank 2: 0 of 2 on far", "rank 3: 1 of 2 on far"])
        said = self.two_hosts("--timeout=-1s")
        self.assertEqual(len([l for l in said if "program: " in l]), 1, said)
        said = self.two_hosts(options=["--enable-recovery"],
                              last=r"  rank 3 \(process ",
                              PROBE_FAULT="abort", PROBE_FAULT_RANK="3")
        first = [line for line in said if "program: " in line]
        self.assertEqual(len(first), 1, said)
        self.assertRegex(first[0], r"rank 3: process \d+ on host far died")


class KillsCase(JobsTest):
    """Kills processes while they move data by UCX."""

    def setUp(self):
        super().setUp()
        self.random = random.Random(int(os.environ.get("CROSSHATCH_FUZZ_SEED", 1)))
        self.kills = int(os.environ.get("CROSSHATCH_KILLS", 3))

    def variables(self, rank):
        return {"PROBE_DATA": str(self.random.choice([200, 20000, 3 << 20])),
                "PROBE_FAULT": "kill", "PROBE_FAULT_RANK": str(rank),
                "PROBE_KILL_AFTER": str(self.random.randrange(100000))}

    def assert_killed(self, said, rank):
        first = [line for line in said if "program: " in line]
        self.assertEqual(len(first), 1, said)
        self.assertRegex(first[0],
                         rf"program: rank {rank}: process \d+ on host \S+ "
                         r"(which coordinates the job, )?died")


class KillsTest(KillsCase):
    """Loses processes while they move data by UCX."""

    def shared_memory(self):
        return {name for name in os.listdir("/dev/shm") if "ucx" in name}

    def test_kills_on_one_host(self):
        for kill in range(self.kills):
            rank = self.random.randrange(4)
            with self.subTest(kill=kill, rank=rank):
                began = time.monotonic()
                job = self.plain(4, **self.variables(rank))
                statuses, said = job.end()
                self.assert_killed(said, rank)
                self.assertEqual(statuses, [-signal.SIGKILL if r == rank else 1
                                            for r in range(4)])
                # Before the timeout.
                self.assertLess(time.monotonic() - began, 25)
        # Files of other programs exist only briefly.
        left = self.shared_memory()
        for _ in range(10):
            time.sleep(0.1)
            left &= self.shared_memory()
        self.assertEqual(left, set())

    def test_kills_under_mpirun(self):
        for kill in range(self.kills):
            rank = self.random.randrange(4)
            with self.subTest(kill=kill, rank=rank):
                job = self.mpirun(4, "--transport=ucx",
                                  options=["--enable-recovery"],
                                  **self.variables(rank))
                _, said = job.end()
                self.assert_killed(said, rank)

    def test_stops(self):
        timeout = 4
        for stop in range(self.kills):
            rank = self.random.randrange(1, 3)
            with self.subTest(stop=stop, rank=rank):
                variables = self.variables(rank)
                del variables["PROBE_FAULT"], variables["PROBE_FAULT_RANK"]
                job = self.plain(3, f"--timeout={timeout}s", PROBE_STOP=self.dir,
                                 **variables)
                job.await_running()
                time.sleep(self.random.random() * 0.1)
                job.processes[rank].send_signal(signal.SIGSTOP)
                began = time.monotonic()
                for other in range(3):
                    if other != rank:
                        self.assertEqual(
                            job.processes[other].wait(timeout=LONG), 1)
                self.assertLess(time.monotonic() - began, 2 * timeout + 5)
                job.processes[rank].send_signal(signal.SIGCONT)
                _, said = job.end()
                first = [line for line in said
                         if "program: " in line and "[rank" not in line]
                self.assertEqual(len(first), 1, said)
                self.assertRegex(
                    first[0], rf"program: rank {rank}: process \d+ on host "
                    r"\S+ does not answer")


class KillsOnTwoHostsTest(KillsCase):
    """The same between two hosts."""

    def test_kills_on_two_hosts(self):
        for kill in range(self.kills):
            rank = self.random.randrange(1, 4)
            with self.subTest(kill=kill, rank=rank):
                variables = self.variables(rank)
                options = ["--enable-recovery"]
                for name, value in variables.items():
                    options += ["-x", f"{name}={value}"]
                said = self.two_hosts("--transport=ucx", *TIMES, options=options,
                                      last=r"  rank 3 \(process ", **variables)
                if said is None:
                    return
                self.assert_killed(said, rank)


class LossesTest(JobsTest):
    def test_a_process_that_is_lost_in_mpi_is_named(self):
        timeout = 5
        for function, which, words in [
                ("MPI_Init_thread", signal.SIGKILL, "died: "),
                ("MPI_Finalize", signal.SIGKILL, "died: ")]:
            with self.subTest(function=function, signal=which.name):
                began = time.monotonic()
                variables = {"PROBE_MPI": function, "PROBE_FAULT_RANK": "2",
                             "PROBE_SIGNAL": str(int(which))}
                flags = [f"--timeout={timeout}s"]
                job = self.mpirun(3, *flags, options=["--enable-recovery"],
                                  **variables)
                _, said = job.end()
                # Includes the start.
                self.assertLess(time.monotonic() - began, 2 * timeout + 10)
                said = [line for line in said if "program" in line]
                self.assertEqual(len(said), 1, said)
                self.assertRegex(
                    said[0], rf"^probe_program: rank 2: process \d+ on host "
                    rf"\S+ {words}")

    def test_a_link_that_is_cut(self):
        said = self.two_hosts("--timeout=4s", options=["--enable-recovery"],
                              last=r"  rank 3 \(process ",
                              PROBE_FAULT="cut", PROBE_FAULT_RANK="0")
        if said is None:
            return
        first = [line for line in said if "program: " in line]
        self.assertEqual(len(first), 1, said)
        self.assertRegex(first[0], r"rank [23]: process \d+ on host far does "
                         r"not answer: no sign of it for ")


if __name__ == "__main__":
    beside.main()
