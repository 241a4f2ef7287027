# SPDX-License-Identifier: Apache-2.0
"""Base of the tests that run train_lm; the first argument is the program."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
SMALL = ["--dim=32", "--layers=2", "--heads=4", "--kv_heads=2", "--ffn=50",
         "--global_batch=5", "--seq_len=17", "--steps=3"]
TIMES = ["tokens_per_s", "step_ms"]
VALUES = ["loss", "grad_norm"]


class TrainLmTestCase(unittest.TestCase):
    """Runs the program sys.argv[1]."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.text = self.path("text")
        with open(self.text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 20)

    def path(self, name):
        return os.path.join(self.dir, name)

    def full_pipe(self):
        """Returns (path, descriptor) of a full pipe, which blocks writers until it
        is read."""
        path = self.path("full_pipe")
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, pipe)
        with self.assertRaises(BlockingIOError):
            while os.write(pipe, bytes(1 << 16)):
                pass
        return path, pipe

    def run_program(self, *flags, limit=None):
        """\param limit: maximal size of a file in bytes."""
        def set_limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run([PROGRAM, *flags], capture_output=True,
                              text=True, timeout=120,
                              preexec_fn=set_limit if limit else None)

    def refusal(self, *flags):
        """Returns the one line that a run prints that fails."""
        run = self.run_program(*flags)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        lines = run.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, run.stderr)
        return lines[0]

    def metrics(self, *flags, without=()):
        path = self.path("metrics")
        run = self.run_program("--text=" + self.text, "--metrics=" + path,
                               *SMALL, *flags)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(path) as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3])
        for line in lines:
            for key in without:
                del line[key]
        return lines
