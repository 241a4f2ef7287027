#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts one binary by torchrun, mpirun, plain variables and alone: the metrics
are equal. Also checks the messages after wrong starts by torchrun.

usage: torchrun_test.py PROGRAM
$CROSSHATCH_PYTHON: a Python that has PyTorch, if this one lacks it. Without any
the test prints that and checks nothing.
"""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
from held_port import hold_port  # noqa: E402
from mpi_place import environment_in, make_place  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
FLAGS = ["--dim=32", "--layers=2", "--heads=4", "--ffn=50", "--global_batch=5",
         "--seq_len=17", "--steps=3", "--mesh=fsdp:2,tp:2"]
LONG = 120


def has_torchrun(python):
    return subprocess.run([python, "-c", "import torch.distributed.run"],
                          stderr=subprocess.DEVNULL).returncode == 0


PYTHON = next((python for python in (sys.executable, os.environ.get("CROSSHATCH_PYTHON"))
               if python and has_torchrun(python)), None)


class TorchrunTest(unittest.TestCase):
    def setUp(self):
        self.dir = make_place(self)
        self.text = os.path.join(self.dir, "text")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write("A small text to learn, which goes on and on. " * 20)
        self.environment = environment_in(self.dir)

    def popen(self, launcher, name, *more, **variables):
        process = subprocess.Popen(
            [*launcher, PROGRAM, "--text=" + self.text, *FLAGS,
             "--metrics=" + os.path.join(self.dir, name), *more],
            env={**self.environment, **variables}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def torchrun(self, name, *more, ranks=4):
        # Behaves like `torchrun`: it listens on the port, and rank 0 on the
        # next one.
        return self.popen([PYTHON, "-m", "torch.distributed.run", "--no-python",
                           f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1",
                           f"--master-port={hold_port(self, count=2)}"], name, *more)

    def metrics(self, name, processes):
        for process in processes:
            _, error = process.communicate(timeout=LONG)
            self.assertEqual(process.returncode, 0, error)
        with open(os.path.join(self.dir, name), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        for line in lines:
            # Times, memory and copied bytes depend on the engine.
            for key in "tokens_per_s", "step_ms", "peak_bytes", "copied_bytes":
                del line[key]
        return lines

    def test_each_launcher_starts_the_same_binary(self):
        alone = self.metrics("alone", [self.popen([], "alone")])
        self.assertEqual(len(alone), 3)
        port = hold_port(self)
        for name, processes in [
                ("torchrun", [self.torchrun("torchrun")]),
                ("mpirun", [self.popen(["mpirun", "--oversubscribe", "-np", "4"], "mpirun")]),
                ("variables", [self.popen([], "variables", RANK=str(rank), WORLD_SIZE="4",
                                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                               for rank in range(4)])]:
            with self.subTest(launcher=name):
                self.assertEqual(self.metrics(name, processes), alone)

    def test_a_bad_start_is_one_line(self):
        for more, ranks, expected in [
                ([], 2, "--mesh=fsdp:2,tp:2 needs 4 ranks, and torchrun started 2 processes"),
                (["--nosuch=1"], 4, "Unknown command line flag 'nosuch'")]:
            with self.subTest(expected=expected):
                process = self.torchrun("bad", *more, ranks=ranks)
                _, error = process.communicate(timeout=LONG)
                self.assertNotEqual(process.returncode, 0)
                # torchrun prints lines of its own.
                said = [line for line in error.splitlines() if re.search("^(train_lm|ERROR): ", line)]
                self.assertEqual(len(said), 1, error)
                self.assertIn(expected, said[0])


if __name__ == "__main__":
    if PYTHON is None:
        print("NOT CHECKED: no torchrun: this Python has no PyTorch; CROSSHATCH_PYTHON may "
              "name one that has", file=sys.stderr)
        sys.exit(0)
    unittest.main()
