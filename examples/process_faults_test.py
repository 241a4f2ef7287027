#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_lm as 1 to 6 processes: the results are bitwise equal to those of
rank threads. Kills or stops one at random moments and checks messages and files.

usage: process_faults_test.py PROGRAM RUN_MPI_TEST RUN_MPI_TEST_ON_TWO_HOSTS
$CROSSHATCH_PROCESS_FAULTS: the number of kills and of stops (default: 3 each).
$CROSSHATCH_FUZZ_SEED: seeds the moments (default: 1).
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
import beside  # noqa: E402
import mount_namespace  # noqa: E402

mount_namespace.enter(without="jobs with no others' files beside their own")
# MPI names files there by process numbers, which jobs in other sandboxes share.
if mount_namespace.may_mount():
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)

TWO_HOSTS, RUN_MPI, PROGRAM = (os.path.abspath(sys.argv.pop())
                               for _ in range(3))
MODEL = ["--dim=24", "--layers=2", "--heads=3", "--ffn=50", "--vocab=131",
         "--global_batch=5", "--seq_len=17"]
MESHES = {1: ["fsdp:1"], 2: ["tp:2", "fsdp:2"], 4: ["fsdp:2,tp:2"],
          6: ["fsdp:3,tp:2", "replicate:2,fsdp:3"]}
FAULTS = int(os.environ.get("CROSSHATCH_PROCESS_FAULTS", "3"))
SEED = int(os.environ.get("CROSSHATCH_FUZZ_SEED", "1"))
TIMEOUT = 6
# The time to inspect all processes of the machine.
SLACK = 1
# MPI's files are in the same places as for a user.
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root"]


def processes_of(program):
    """Returns the processes that run the file, without zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{entry}/exe") == os.path.realpath(program):
                found.append(int(entry))
        except OSError:
            continue  # It has ended, or is another user's.
    return found


def naming(directory):
    """Returns processes with `directory` in their environment, like MPI's servers."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if directory.encode() in file.read():
                    found.append(int(entry))
        except OSError:
            continue
    return found


def ports_of(pids):
    """Returns inode and port of the processes' listening sockets. Others may use
    the same ports later."""
    inodes = set()
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
        except OSError:
            continue
    return {listens for listens in listening() if listens[0] in inodes}


def listening():
    for table in "tcp", "tcp6":
        with open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    yield fields[9], int(fields[1].rsplit(":", 1)[1], 16)


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        # Short, because names of sockets are limited.
        self.dir = tempfile.mkdtemp(dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        # A file of this test identifies its processes.
        self.program = self.path("train_lm")
        shutil.copy(PROGRAM, self.program)
        self.text = self.path("text")
        with open(self.text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 20)
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for pid in processes_of(self.program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def path(self, name):
        return os.path.join(self.dir, name)

    def flags(self, mesh, name, steps=3):
        return ["--text=" + self.text, "--mesh=" + mesh, f"--steps={steps}",
                "--metrics=" + self.path(name), "--save=" + self.path(name + ".d"),
                "--overwrite", *MODEL]

    def results(self, name):
        """Returns the output that must not depend on how the ranks run."""
        with open(self.path(name)) as file:
            lines = [json.loads(line) for line in file]
        with open(self.path(name + ".d/model.safetensors"), "rb") as file:
            weights = file.read()
        return [{k: v for k, v in line.items()
                 if k not in ("tokens_per_s", "step_ms")}
                for line in lines], weights

    def run_alone(self, mesh):
        subprocess.run([self.program, *self.flags(mesh, "alone")], check=True,
                       stdout=subprocess.DEVNULL, timeout=120)
        return self.results("alone")

    def test_mpirun_gives_the_bits_of_rank_threads(self):
        for count, meshes in MESHES.items():
            for mesh in meshes:
                with self.subTest(mesh=mesh):
                    expected = self.run_alone(mesh)
                    run = subprocess.run(
                        [RUN_MPI, str(count), "100", self.program,
                         *self.flags(mesh, "mpi")],
                        capture_output=True, text=True, timeout=120)
                    self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                    self.assertEqual(self.results("mpi"), expected)

    def test_two_hosts_give_the_bits_of_rank_threads(self):
        expected = self.run_alone("fsdp:2,tp:2")
        run = subprocess.run(
            [TWO_HOSTS, "4", "100", self.program,
             *self.flags("fsdp:2,tp:2", "hosts")],
            capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        if "NOT CHECKED" in run.stderr:
            print(run.stderr, file=sys.stderr)
            return
        self.assertEqual(self.results("hosts"), expected)

    def await_steps(self):
        """Waits until rank 0 has reported one, or they have ended."""
        while processes_of(self.program):
            if os.path.exists(self.path("fault")) and os.path.getsize(self.path("fault")):
                return
            time.sleep(0.02)

    def fault(self, which, seed, trains):
        """Kills or stops one of four processes at a random moment of start or
        training.

        Returns its rank, all output, how long the others took to exit, and the
        job's ports."""
        draw = random.Random(seed)
        flags = self.flags("fsdp:2,tp:2", "fault", steps=1000000)
        run = subprocess.Popen(
            [*MPIRUN, "--enable-recovery", "-np", "4", self.program, *flags,
             f"--timeout={TIMEOUT}s"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "OMPI_ALLOW_RUN_AS_ROOT": "1", "HOME": self.dir,
                 "TMPDIR": self.dir},
            start_new_session=True)
        self.addCleanup(run.stdout.close)
        ranks = {}
        while len(ranks) < 4 and run.poll() is None:
            for pid in processes_of(self.program):
                try:
                    with open(f"/proc/{pid}/environ") as file:
                        variables = dict(entry.split("=", 1)
                                         for entry in file.read().split("\0")
                                         if "=" in entry)
                except OSError:
                    continue
                # Before it replaces mpirun, a process has no environment yet.
                if "OMPI_COMM_WORLD_RANK" in variables:
                    ranks[int(variables["OMPI_COMM_WORLD_RANK"])] = pid
            time.sleep(0.02)
        self.assertEqual(len(ranks), 4)
        if trains:
            self.await_steps()
            time.sleep(draw.uniform(0, 0.5))
        else:
            time.sleep(draw.uniform(0, 1))
        rank = draw.randrange(4)
        ports = ports_of({run.pid, *ranks.values()})
        began = time.monotonic()
        os.kill(ranks[rank], which)
        left = set(ranks.values()) - {ranks[rank]}
        while left & set(processes_of(self.program)):
            self.assertLess(time.monotonic() - began, 2 * TIMEOUT + SLACK,
                            f"rank {rank}, {which}, seed {seed}")
            time.sleep(0.05)
        took = time.monotonic() - began
        if which == signal.SIGSTOP:
            os.kill(ranks[rank], signal.SIGKILL)
        # mpirun exits with 0 here, because it has recovered. Or it waits for
        # its own PMIx server, as Open MPI 4.1 sometimes does after a process
        # was killed while MPI started. That is a matter of the launcher.
        try:
            output, _ = run.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            print("mpirun did not end by itself", file=sys.stderr)
            run.kill()
            output, _ = run.communicate(timeout=60)
        return rank, output, took, ports

    def assert_nothing_is_left(self, ports):
        """Checks that no files of the library remain; MPI's are the launcher's."""
        until = time.monotonic() + 30
        while True:
            # mpirun's daemons exit just after it.
            left = [*processes_of(self.program), *naming(self.dir)]
            files = [name for name in os.listdir(self.dir)
                     if name.startswith("crosshatch-")]
            taken = ports & set(listening())
            if not (left or files or taken):
                return
            self.assertLess(time.monotonic(), until,
                            f"processes {left}, files {files}, ports {taken}")
            time.sleep(0.1)

    def check_fault(self, which, number):
        seed = 1000 * SEED + number
        rank, output, took, ports = self.fault(which, seed, number % 2 == 0)
        said = [line for line in output.splitlines()
                if "train_lm: " in line and "note: " not in line]
        self.assertEqual(len(said), 1, output)
        host = re.escape(socket.gethostname())
        words = "died" if which == signal.SIGKILL else "does not answer"
        # A process that is lost before the rendezvous has not reported its
        # number.
        self.assertRegex(
            said[0], rf"rank {rank}: process \d+ on host {host}.* "
            rf"{words}|rank {rank}: process .* was stopped|"
            rf"rank {rank}: the process of rank 0|"
            rf"rank {rank} has not come within|" +
            ("rank 0's coordinator is not to be found" if rank == 0 else "$^"))
        self.assert_nothing_is_left(ports)
        print(f"{which.name} of rank {rank}, seed {seed}: until the last had left: "
              f"{took:.1f} s", file=sys.stderr)


def add_fault(which, number):
    """The other processes exit and name the lost one, for one random moment."""
    name = "killed" if which == signal.SIGKILL else "stopped"
    setattr(ProcessesTest, f"test_a_process_is_{name}_{number}",
            lambda self: self.check_fault(which, number))


for fault in range(FAULTS):
    for way in signal.SIGKILL, signal.SIGSTOP:
        add_fault(way, fault)


if __name__ == "__main__":
    # They train, so a lost process must be detected in time.
    beside.main(at_once=3)
