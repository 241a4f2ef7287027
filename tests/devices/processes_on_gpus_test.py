#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains by train_lm as processes, with one device each, in float32 and bfloat16.
The losses are those of one rank on the CPU.

usage: processes_on_gpus_test.py PROGRAM RUN_MPI_TEST PROCESSES [DEVICE]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

DEVICE = sys.argv.pop(4) if len(sys.argv) > 4 else "cuda"
PROCESSES = int(sys.argv.pop(3))
RUN_MPI_TEST = sys.argv.pop(2)
PROGRAM = sys.argv.pop(1)
STEPS = 4
SECONDS = 200
# Losses are about 4. In float32 they differ by the order of sums, and in bfloat16
# by the rounding of about 100 results in a row to 8 bits, in random directions.
TOLERANCE = {"float32": 1e-4, "bfloat16": 4 * 100**0.5 * 2**-9}


def meshes(processes):
    if processes == 1:
        return ["fsdp:1"]
    if processes == 2:
        return ["fsdp:2", "tp:2"]
    return ["fsdp:%d" % processes, "fsdp:%d,tp:2" % (processes // 2)]


class ProcessesOnGpusTest(unittest.TestCase):

    def losses(self, command, directory, *flags):
        metrics = os.path.join(directory, "metrics")
        text = os.path.join(directory, "text")
        with open(text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 20)
        run = subprocess.run(
            [*command, PROGRAM, "--text=" + text, "--metrics=" + metrics, "--steps=%d" % STEPS,
             "--dim=128", "--layers=2", "--heads=8", "--kv_heads=8", "--ffn=256",
             "--global_batch=8", "--seq_len=64", *flags],
            capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        with open(metrics) as file:
            return [json.loads(line)["loss"] for line in file]

    def test_losses_are_those_of_one_rank_on_the_cpu(self):
        for dtype, tolerance in TOLERANCE.items():
            with tempfile.TemporaryDirectory() as directory:
                expected = self.losses([], directory, "--dtype=" + dtype)
            self.assertEqual(len(expected), STEPS)
            self.assertLess(expected[-1], expected[0])
            for mesh in meshes(PROCESSES):
                with self.subTest(dtype=dtype, mesh=mesh), \
                        tempfile.TemporaryDirectory() as directory:
                    losses = self.losses(
                        [RUN_MPI_TEST, str(PROCESSES), str(SECONDS)], directory,
                        "--dtype=" + dtype, "--mesh=" + mesh, "--device=" + DEVICE)
                    self.assertEqual(len(losses), STEPS)
                    for loss, of_cpu in zip(losses, expected):
                        self.assertAlmostEqual(loss, of_cpu, delta=tolerance)


if __name__ == "__main__":
    unittest.main()
