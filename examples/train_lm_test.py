#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_lm as a user would: what repeats, what is equal, what is refused.

usage: train_lm_test.py PROGRAM MODEL_FILE
where MODEL_FILE is a file of a Hugging Face model directory.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MODEL_FILE = sys.argv.pop(1), sys.argv.pop(1)
MODEL = os.path.dirname(MODEL_FILE)
SMALL = ["--dim=32", "--layers=2", "--heads=4", "--kv_heads=2", "--ffn=50",
         "--global_batch=5", "--seq_len=17", "--steps=3"]
TIMES = ["tokens_per_s", "step_ms"]
VALUES = ["loss", "grad_norm"]


class TrainLmTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.text = self.path("text")
        with open(self.text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 20)

    def path(self, name):
        return os.path.join(self.dir, name)

    def run_program(self, *flags):
        return subprocess.run([PROGRAM, *flags], capture_output=True,
                              text=True, timeout=120)

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

    def refusal(self, *flags):
        run = self.run_program(*flags)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        lines = run.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, run.stderr)
        return lines[0]

    def test_two_runs_give_equal_metrics(self):
        for mesh in ["fsdp:2,tp:2", "replicate:2,fsdp:2"]:
            flags = ["--mesh=" + mesh]
            self.assertEqual(self.metrics(*flags, without=TIMES),
                             self.metrics(*flags, without=TIMES))

    def test_initial_weights_are_equal_on_every_mesh(self):
        # With a learning rate of 0 the weights saved are the initial ones.
        weights = set()
        for mesh in ["fsdp:1", "fsdp:3", "tp:3", "fsdp:2,tp:2"]:
            out = self.path("model")
            self.metrics("--mesh=" + mesh, "--lr=0", "--seed=5",
                         "--save=" + out, "--overwrite")
            with open(os.path.join(out, "model.safetensors"), "rb") as file:
                weights.add(file.read())
        self.assertEqual(len(weights), 1)

    def test_a_dry_run_gives_the_bytes_and_peaks_of_a_real_one(self):
        for mesh in ["fsdp:2,tp:2", "fsdp:3,tp:2", "replicate:2,fsdp:2"]:
            real = self.metrics("--mesh=" + mesh, without=TIMES + VALUES)
            dry = self.metrics("--mesh=" + mesh, "--backend=fake",
                               without=TIMES + VALUES)
            self.assertEqual(real, dry)

    def test_a_saved_model_goes_on_where_it_was(self):
        out = self.path("model")
        self.metrics("--mesh=fsdp:2", "--save=" + out)
        again = self.path("again")
        run = self.run_program(
            "--text=" + self.text, "--model=" + out, "--lr=0", "--steps=1",
            "--mesh=tp:2", "--save=" + again)
        self.assertEqual(run.returncode, 0, run.stderr)
        files = [os.path.join(d, "model.safetensors") for d in (out, again)]
        with open(files[0], "rb") as a, open(files[1], "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_learns(self):
        losses = [line["loss"] for line in self.metrics("--lr=0.01")]
        self.assertLess(losses[-1], losses[0])

    def test_refuses_in_one_sentence(self):
        text = "--text=" + self.text
        for flags, expected in [
            (["--text=/no/such"], "cannot open /no/such: No such file"),
            ([], "either --text=FILE,... or --tokens=FILE"),
            ([text, "--mesh=pp:2"], 'unknown axis "pp"'),
            ([text, "--mesh=fsdp:0"], '"fsdp:0" is not AXIS:SIZE'),
            ([text, "--mesh=tp:2,tp:2"], 'the axis "tp" comes twice'),
            ([text, "--mesh=tp:3", "--heads=2"], "2 heads, fewer than the 3"),
            ([text, "--vocab=50"], "beyond the vocabulary of 50"),
            ([text, "--steps=0"], "--steps=0: must be at least 1"),
            ([text, "--fake_rank=1"], "--fake_rank is for --backend=fake"),
            ([text, "--model=" + MODEL, "--dim=64"], "brings its own"),
            ([text, "--model=/no/such"], "cannot open /no/such/config.json"),
            ([text, "--lr=1e30", "--mesh=fsdp:2", "--steps=9"], "nan"),
        ]:
            self.assertIn(expected, self.refusal(*flags))

    def test_refuses_a_directory_that_is_in_use(self):
        out = self.path("full")
        os.mkdir(out)
        with open(os.path.join(out, "mine"), "w") as file:
            file.write("keep")
        self.assertIn("not empty", self.refusal(
            "--text=" + self.text, "--save=" + out))
        self.assertEqual(os.listdir(out), ["mine"])

    def test_a_damaged_model_leaves_nothing_behind(self):
        bad = self.path("bad")
        shutil.copytree(MODEL, bad)
        weights = os.path.join(bad, "model.safetensors")
        os.chmod(bad, 0o755)
        os.chmod(weights, 0o644)
        with open(weights, "rb") as file:
            content = file.read()
        out = self.path("out")
        for damaged, expected in [
            (content[:5], "ends after 5 bytes"),
            (content[:len(content) // 2], "truncated"),
            (b"\xff" * 8 + content[8:], "not a valid safetensors file"),
            (content[:8] + b"[" + content[9:], "not a valid safetensors file"),
        ]:
            with open(weights, "wb") as file:
                file.write(damaged)
            self.assertIn(expected, self.refusal(
                "--text=" + self.text, "--model=" + bad, "--mesh=fsdp:2",
                "--save=" + out))
            self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    unittest.main()
