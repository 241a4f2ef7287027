#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_lm as 1 to 6 processes: equal to rank threads in bits; and what is
left, and said, when one is killed or stopped at any moment.

usage: process_faults_test.py PROGRAM RUN_MPI_TEST
$CROSSHATCH_PROCESS_FAULTS: how many kills and stops (default: 3 of each);
$CROSSHATCH_FUZZ_SEED: of the moments (default: 1).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

RUN_MPI, PROGRAM = (os.path.abspath(sys.argv.pop()) for _ in range(2))
MODEL = ["--dim=24", "--layers=2", "--heads=3", "--ffn=50", "--vocab=131",
         "--global_batch=5", "--seq_len=17"]
MESHES = {1: ["fsdp:1"], 2: ["tp:2", "fsdp:2"], 4: ["fsdp:2,tp:2"],
          6: ["fsdp:3,tp:2", "replicate:2,fsdp:3"]}
FAULTS = int(os.environ.get("CROSSHATCH_PROCESS_FAULTS", "3"))
SEED = int(os.environ.get("CROSSHATCH_FUZZ_SEED", "1"))


def processes_of(program):
    """Those that run the file, but for the dead that nobody has waited for."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{entry}/exe") == os.path.realpath(program):
                found.append(int(entry))
        except OSError:
            continue  # It ended meanwhile, or is another user's.
    return found


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        # Short, for the names of sockets.
        self.dir = tempfile.mkdtemp(dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        # A file of this test's own tells its processes from any others.
        self.program = self.path("train_lm")
        shutil.copy(PROGRAM, self.program)
        self.text = self.path("text")
        with open(self.text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 20)
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for pid in processes_of(self.program):
            os.kill(pid, signal.SIGKILL)

    def path(self, name):
        return os.path.join(self.dir, name)

    def flags(self, mesh, name, steps=3):
        return ["--text=" + self.text, "--mesh=" + mesh, f"--steps={steps}",
                "--metrics=" + self.path(name), "--save=" + self.path(name + ".d"),
                "--overwrite", *MODEL]

    def results(self, name):
        """What must not depend on how the ranks run."""
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

    def fault(self, which, seed):
        """Kills or stops one of four processes at some moment."""
        draw = random.Random(seed)
        flags = self.flags("fsdp:2,tp:2", "fault", steps=1000000)
        run = subprocess.Popen(
            [RUN_MPI, "4", "100", "--enable-recovery", self.program, *flags,
             "--timeout=4s", "--heartbeat_timeout=2s"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
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
                # A process has no variables yet while it takes mpirun's place.
                if "OMPI_COMM_WORLD_RANK" in variables:
                    ranks[int(variables["OMPI_COMM_WORLD_RANK"])] = pid
            time.sleep(0.02)
        self.assertEqual(len(ranks), 4)
        time.sleep(draw.uniform(0, 3))
        rank = draw.randrange(4)
        began = time.monotonic()
        os.kill(ranks[rank], which)
        left = set(ranks.values()) - {ranks[rank]}
        while left & set(processes_of(self.program)):
            # The timeout is there twice, and then for a machine that is busy.
            self.assertLess(time.monotonic() - began, 2 * 4 + 12,
                            f"rank {rank}, {which}, seed {seed}")
            time.sleep(0.05)
        if which == signal.SIGSTOP:
            os.kill(ranks[rank], signal.SIGKILL)
        # mpirun's own status is 0 here: it has recovered.
        output, _ = run.communicate(timeout=60)
        return rank, output

    def test_the_others_leave_and_name_the_process_that_is_lost(self):
        for number in range(FAULTS):
            for which, words in [(signal.SIGKILL, "died"),
                                 (signal.SIGSTOP, "does not answer")]:
                seed = 1000 * SEED + number
                self.kill_all()  # Of a fault before that went wrong.
                with self.subTest(signal=which.name, seed=seed):
                    before = set(os.listdir("/dev/shm"))
                    rank, output = self.fault(which, seed)
                    # Before all have met nobody knows who is missing.
                    self.assertRegex(
                        output, rf"rank {rank}: process .* {words}|"
                        rf"rank {rank} has not come within|"
                        r"MPI has not started within")
                    self.assertEqual(processes_of(self.program), [])
                    self.assertEqual(set(os.listdir("/dev/shm")) - before, set())


if __name__ == "__main__":
    unittest.main()
