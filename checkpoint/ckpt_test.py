#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ckpt as a user would, on a checkpoint of the format's first version.

usage: ckpt_test.py PROGRAM
"""

import filecmp
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
SAMPLE = os.path.abspath("checkpoint/testdata/version-1")


class CkptTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def run_ckpt(self, *words, status=0):
        """Returns (stdout, stderr) of `ckpt WORDS`, run in self.dir."""
        done = subprocess.run(
            [PROGRAM, *words], capture_output=True, text=True, timeout=60,
            env={**os.environ, "BUILD_WORKING_DIRECTORY": self.dir})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_what_the_first_version_wrote_is_read(self):
        out, _ = self.run_ckpt("inspect", SAMPLE)
        self.assertEqual(out, INSPECTED)
        out, _ = self.run_ckpt("verify", SAMPLE)
        self.assertIn("is as saved: 3 tensors, 156 bytes", out)

    def test_rewrites_and_compares(self):
        self.run_ckpt("reshard", SAMPLE, "new", "--ranks=3")
        self.assertTrue(os.path.isdir(os.path.join(self.dir, "new")))
        self.assertEqual(self.run_ckpt("diff", SAMPLE, "new"), ("", ""))
        self.run_ckpt("convert", SAMPLE, "hf", "--family=llama")
        self.assertEqual(os.listdir(os.path.join(self.dir, "hf")),
                         ["model.safetensors"])
        self.run_ckpt("convert", SAMPLE, "mistral", "--family=mistral")
        both = [os.path.join(self.dir, name, "model.safetensors")
                for name in ("hf", "mistral")]
        self.assertTrue(filecmp.cmp(*both, shallow=False))
        _, err = self.run_ckpt("verify", "hf", status=1)
        self.assertIn("is not a checkpoint: it has no checkpoint.json", err)

    def test_a_difference_is_a_status(self):
        changed = os.path.join(self.dir, "changed")
        shutil.copytree(SAMPLE, changed)
        index = os.path.join(changed, "checkpoint.json")
        os.chmod(changed, 0o755)
        os.chmod(index, 0o644)
        with open(index) as file:
            text = file.read()
        with open(index, "w") as file:
            file.write(text.replace('"step": 7', '"step": 8'))
        out, _ = self.run_ckpt("diff", SAMPLE, "changed", status=1)
        self.assertEqual(out, "step: 7 against 8\n")

    def test_what_cannot_be_printed_is_an_error(self):
        for words in ["inspect", SAMPLE], ["verify", SAMPLE]:
            with open("/dev/full", "w") as full:
                done = subprocess.run([PROGRAM, *words], stdout=full,
                                      stderr=subprocess.PIPE, text=True,
                                      timeout=60)
            self.assertEqual(
                (done.returncode, done.stderr),
                (1, "ckpt: cannot write to standard output: "
                    "No space left on device\n"))

    def test_a_file_that_may_not_be_so_long_is_an_error(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        new = os.path.join(self.dir, "new")
        done = subprocess.run(
            [PROGRAM, "reshard", SAMPLE, new, "--ranks=3"], timeout=60,
            stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^ckpt: cannot set the length of .*: File too large\n$")
        self.assertEqual(os.listdir(self.dir), [])

    def test_wrong_uses_are_reported(self):
        for words, why in [
                ([], "no command"),
                (["look", "a"], 'no command "look"'),
                (["verify"], "verify takes a directory"),
                (["diff", "a"], "diff takes two directories"),
                (["reshard", "a", "b"], "reshard needs --ranks=N"),
                (["inspect", "a", "--ranks=2"], "inspect takes no --ranks=2"),
                (["inspect", "a", "--rank=2"],
                 "ERROR: Unknown command line flag 'rank'"),
                (["convert", "a", "b", "--max_file_bytes=x"],
                 "Illegal value 'x' specified for flag 'max_file_bytes'"),
                (["convert", "a", "b", "--family=phi"],
                 "--family=phi is none of llama, mistral"),
                (["convert", "a", "b", "--family=phi3", "--new_prefix=x"],
                 "convert takes no --new_prefix=x")]:
            _, err = self.run_ckpt(*words, status=1)
            self.assertIn(why, err)
        # Abseil's status for help.
        out, _ = self.run_ckpt("--help", status=1)
        self.assertIn("ckpt inspect DIR", out)
        self.assertIn("--max_file_bytes", out)

    def test_clean_takes_the_directory_of_a_run(self):
        _, err = self.run_ckpt("clean", "nosuch", status=1)
        self.assertRegex(err, "^ckpt: cannot list nosuch: No such file")
        _, err = self.run_ckpt("clean", SAMPLE, status=1)
        self.assertIn("is not the directory of a run: it contains no step-N", err)
        os.makedirs(os.path.join(self.dir, "run/step-000003.saving"))
        for left in ["removed run/step-000003.saving\n", "nothing to remove\n"]:
            out, _ = self.run_ckpt("clean", "run")
            self.assertEqual(out, left)


INSPECTED = """\
3 tensors, 156 bytes in 2 files of 2 ranks; 2 values
optimizer.lr = 0.001
step = 7
model.norm: f32[4], 1 cell, eefc6923472ab122
model.w: f32[5, 4], 2 cells, ac6608b2545e884f
optimizer.m.w: f32[5, 3], 2 cells, 96c9aaa2c095bd36
"""

if __name__ == "__main__":
    unittest.main()
