#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests take turns per GPU. No GPU is needed: programs are shell scripts."""

import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_gpu_test")
_loader = importlib.machinery.SourceFileLoader("run_gpu_test", _PATH)
run_gpu_test = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("run_gpu_test", _loader))
_loader.exec_module(run_gpu_test)

# The program's locks are in the test's own directory.
_START = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader("run_gpu_test", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_gpu_test", loader))
loader.exec_module(module)
module.LOCKS = sys.argv[2]
module.main(sys.argv[3:])
"""


class RunGpuTestTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)

    def start(self, count, script, visible="0,1,2"):
        return subprocess.Popen(
            [sys.executable, "-c", _START, _PATH, str(self.root / "locks"), str(count), "sh", "-c",
             script],
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=visible, ROOT=str(self.root),
                     PYTHONDONTWRITEBYTECODE="1"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait_for(self, name):
        for _ in range(3000):
            if (self.root / name).exists():
                return
            time.sleep(0.01)
        self.fail("%s did not come" % name)

    def test_nobody_shares_a_gpu(self):
        # Creating a directory twice fails, which detects a shared GPU.
        script = """
            for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do
              mkdir "$ROOT/used_$gpu" || exit 1
            done
            sleep 0.02
            for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do
              rmdir "$ROOT/used_$gpu"
            done
        """
        running = [self.start(count, script) for count in [1, 2, 3, 1, 2, 1, 3, 1]]
        for process in running:
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, output)

    def test_what_waits_for_many_is_not_overtaken(self):
        first = self.start(1, "touch $ROOT/first; while [ ! -e $ROOT/end ]; do sleep 0.01; done")
        self.wait_for("first")
        many = self.start(3, "touch $ROOT/many")
        # It runs when it has locked the two free ones.
        for name in ("1", "2"):
            self.wait_for("locks/gpu_" + name)
        later = self.start(1, "test -e $ROOT/many")
        time.sleep(0.2)
        self.assertFalse((self.root / "many").exists())
        (self.root / "end").touch()
        for process in (first, many, later):
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, output)

    def test_a_gpu_is_free_when_its_program_was_killed(self):
        killed = self.start(3, "touch $ROOT/runs; exec sleep 60")
        self.wait_for("runs")
        killed.kill()
        killed.communicate()
        after = self.start(3, "echo $CUDA_VISIBLE_DEVICES")
        self.assertEqual(after.communicate(timeout=60)[0], "0,1,2\n")

    def test_too_few_is_a_failure(self):
        process = self.start(2, "true", visible="5")
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1)
        self.assertIn("sh needs 2 GPUs, and there are 1 (5)", output)

    def test_a_list_that_shows_too_few_ends_at_once_and_holds_up_nobody(self):
        for visible, shown in (("0,0", "0 (none)"), ("-1", "0 (none)"), ("1,-1,2", "1 (1)")):
            with self.subTest(visible):
                process = self.start(2, "touch $ROOT/ran", visible=visible)
                try:
                    output = process.communicate(timeout=20)[0]
                finally:
                    process.kill()
                self.assertEqual(process.returncode, 1)
                self.assertIn("sh needs 2 GPUs, and there are %s" % shown, output)
                self.assertIn("CUDA_VISIBLE_DEVICES is '%s'" % visible, output)
                self.assertFalse((self.root / "ran").exists())
        after = self.start(3, "true")
        after.communicate(timeout=60)
        self.assertEqual(after.returncode, 0)

    def test_devices_are_those_that_are_visible_or_there(self):
        for name in ("nvidia10", "nvidia2", "nvidiactl"):
            (self.root / name).touch()
        self.assertEqual(run_gpu_test.devices({}, str(self.root)), ["2", "10"])

    def test_a_list_of_devices_is_read_as_cuda_reads_it(self):
        for visible, expected in (
            ("", []),
            ("GPU-a,3", ["GPU-a", "3"]),
            (" 2, 01", ["2", "1"]),
            # Up to the first invalid name.
            ("-1", []),
            ("0,-1,1", ["0"]),
            ("1,,2", ["1"]),
            ("3,no,2", ["3"]),
            # A duplicate GPU.
            ("0,0", []),
            ("0,1,00", []),
            ("MIG-a,MIG-a", []),
            ("0,-1,0", ["0"]),
        ):
            with self.subTest(visible):
                self.assertEqual(run_gpu_test.devices({"CUDA_VISIBLE_DEVICES": visible}), expected)


if __name__ == "__main__":
    unittest.main()
