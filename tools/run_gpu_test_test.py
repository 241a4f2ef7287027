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

    def start(self, count, script, visible="0,1,2", seconds=60):
        return subprocess.Popen(
            [sys.executable, "-c", _START, _PATH, str(self.root / "locks"), str(count),
             str(seconds), "sh", "-c", script],
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

    def add_gpu(self, number, address=None, uuid=None):
        (self.root / "dev").mkdir(exist_ok=True)
        (self.root / "dev" / ("nvidia%s" % number)).touch()
        if address is not None:
            information = self.root / "proc/driver/nvidia/gpus" / address / "information"
            information.parent.mkdir(parents=True)
            information.write_text("Model: \t\t NVIDIA\nGPU UUID: \t %s\nDevice Minor: \t %d\n" %
                                   (uuid, number))

    def devices(self, visible=None):
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return run_gpu_test.devices(environment, str(self.root))

    def test_devices_are_named_by_ordinal_and_locked_by_number(self):
        for number in (5, 10, "ctl"):
            self.add_gpu(number)
        self.assertEqual(self.devices(), {"0": "5", "1": "10"})
        self.assertEqual(self.devices("1"), {"1": "10"})
        # CUDA has no ordinal 5.
        self.assertEqual(self.devices("1,5,0"), {"1": "10"})

    def test_ordinals_are_in_the_order_of_addresses(self):
        self.add_gpu(0, "0000:65:00.0", "GPU-a")
        self.add_gpu(3, "0000:17:00.0", "GPU-b")
        # A GPU of another container.
        self.add_gpu(4, "0000:01:00.0", "GPU-c")
        (self.root / "dev/nvidia4").unlink()
        self.assertEqual(self.devices(), {"0": "3", "1": "0"})
        self.assertEqual(self.devices("GPU-a,0"), {"GPU-a": "0", "0": "3"})
        self.assertEqual(self.devices("GPU-a,1"), {})

    def test_the_wait_for_a_gpu_is_not_the_programs_time(self):
        first = self.start(3, "touch $ROOT/first; while [ ! -e $ROOT/end ]; do sleep 0.01; done")
        self.wait_for("first")
        waits = self.start(1, "true", seconds=1)
        time.sleep(1.5)
        (self.root / "end").touch()
        for process in (first, waits):
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, output)

    def test_a_program_that_does_not_end_is_killed(self):
        output, = self.start(1, "exec sleep 60", seconds=1).communicate(timeout=30)[:1]
        self.assertIn("sh has not ended after 1 seconds on its GPUs", output)
        after = self.start(3, "true")
        self.assertEqual(after.communicate(timeout=60)[0], "")

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
                self.assertEqual(list(self.devices(visible)), expected)


if __name__ == "__main__":
    unittest.main()
