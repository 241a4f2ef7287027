#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report of tools/gpu_hour without a GPU: in a checkout whose Bazel, sanitizer,
nvidia-smi and PyTorch are scripts. Benchmarks and train_lm are real, with tiny sizes:
kernels on an emulated device, training on the CPU.

usage: gpu_hour_test.py DEVICE_BENCHMARK TRAIN_LM
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TRAIN_LM = os.path.abspath(sys.argv.pop())
DEVICE_BENCHMARK = os.path.abspath(sys.argv.pop())
TOOLS = pathlib.Path(__file__).absolute().parent

STEPS = ["machine", "build", "tests", "memcheck", "racecheck", "synccheck", "kernels", "pytorch",
         "attention", "llama", "two_ranks"]

BAZEL = """
case "$1" in
  build) echo built ;;
  test)
    echo "//a:needs_two is left out: it needs 2 GPUs, and --//:gpus is 1"
    echo "//a:one_test                       PASSED in 3.1s"
    echo "//a:two_test              (cached) PASSED in 0.3s"
    [ -z "$FAILS" ] || { echo "//a:three_test    FAILED in 1.0s"; exit 3; } ;;
esac
"""
KERNEL_TESTS = """
[ "$1" != --gtest_list_tests ] || printf 'Copy.\\n  Small\\nSort/All.\\n  Of/0\\n'
"""
SANITIZER = """
case "$*" in *"$FAILS"*Sort*)
  [ -z "$FAILS" ] || { echo "========= Race reported in Sort"; exit 9; } ;;
esac
"""
# Has what SDPA needs in the kernel benchmark's tiny sizes.
PYTHON = """
case "$*" in
  -c*) echo "9.9 13.9 True" ;;
  *attention*)
    echo '{"kernel": "attention", "sizes": "2 x 9 x 2 x 16", "us": 4.0, "flops": 1}' ;;
  *--compile*) exit 1 ;;
  *llama*) echo '{"tokens_per_s": 1234.4, "peak_bytes": 3221225472, "parameters": 5}' ;;
esac
"""


class GpuHourTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.report = self.root / "out/report.txt"
        for name in ("gpu_hour", "run_mpi_test"):
            self.place(TOOLS / name, f"tools/{name}")
        self.script("bazel-bin/benchmarks/device_benchmark",
                    f'exec {DEVICE_BENCHMARK} "$@" --device=cuda')
        self.place(TRAIN_LM, "bazel-bin/examples/train_lm")
        self.script("bazelw", BAZEL)
        self.script("bazel-bin/tensor/kernels/cuda/kernels_test_program", KERNEL_TESTS)
        self.script("bin/compute-sanitizer", SANITIZER)
        self.script("bin/python", PYTHON)
        self.script("bin/nvidia-smi", 'echo "NVIDIA H100 80GB HBM3, 570.1, 81559 MiB"')
        toolkit = self.root / "third_party/cuda/find_toolkit.py"
        toolkit.parent.mkdir(parents=True)
        toolkit.write_text('print(\'{"nvcc": "/cuda/bin/nvcc", "nccl_version": 22809}\')')

    def place(self, source, name):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        # The script finds its checkout by the path that it is called by.
        (self.root / name).symlink_to(source)

    def script(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def hour(self, *flags, status, **environment):
        """Runs the script and returns its report."""
        done = subprocess.run(
            [self.root / "tools/gpu_hour", f"--report={self.report}", "--rehearse",
             f"--python={self.root}/bin/python", *flags], text=True, capture_output=True,
            env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "FAILS": "",
                 **environment})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertEqual(done.stdout, self.report.read_text())
        return done.stdout

    def outcomes(self, report):
        return dict(re.findall(r"^-- (\w+) \(\d+ s\): (.*)$", report, re.MULTILINE))

    def test_reports_each_step(self):
        self.script("bin/python", PYTHON.replace("exit 1", "echo '{\"tokens_per_s\": 5000, "
                                                 "\"peak_bytes\": 1073741824}'"))
        report = self.hour(status=0)
        self.assertEqual(self.outcomes(report), dict.fromkeys(STEPS, "passed"))
        self.assertIn("bound: 3350 GB/s, 989 TFLOP/s in bfloat16\n", report)
        self.assertIn("2 of 2 tests passed\n//a:needs_two is left out", report)
        self.assertEqual(report.count("2 of 2 suites without errors, 0 with, 0 not finished\n"), 3)
        for kernel in ("copy", "rms_norm_backward", "cross_entropy", "adamw", "matmul, dx"):
            self.assertRegex(report, rf"\| {kernel} \| [^|]* \| [\d.]+ \| \d+ \| \d+ % \|")
        self.assertRegex(report, r"\| attention \| 2 x 9 x 2 x 16 \|.*\| 4\.0 \| \d+\.\d\d \|\n")
        self.assertRegex(report, r"\| attention_backward \|.*\| not measured \| - \|\n")
        self.assertRegex(report, r"\| Crosshatch \| [\d,]+ \| \d+ % \| 0\.00 \|\n"
                         r"\| PyTorch, eager \| 1,234 \| 0 % \| 3\.00 \|\n"
                         r"\| PyTorch, compiled \| 5,000 \| 0 % \| 1\.00 \|\n")
        self.assertEqual(len(re.findall(r"(?:threads|processes), \w+:2: losses differ", report)), 4)
        self.assertTrue(report.endswith("11 of 11 steps passed\n"))
        # The whole output of a step.
        self.assertIn("$ ./bazelw build --config=cuda",
                      (self.report.parent / "build.log").read_text())

    def test_goes_on_after_a_step_that_fails(self):
        # A crash in the second of five processes, after its first kernel.
        self.script("bazel-bin/benchmarks/device_benchmark", """
            echo '{"kernel": "'$1'", "sizes": "3", "us": 1.0, "bytes": 3350000, "flops": 0}'
            [ "$1" != --suite=rows ] || { echo "an illegal address" >&2; exit 7; }""")
        report = self.hour("--steps=machine,tests,memcheck,racecheck,kernels,llama", status=1,
                           FAILS="racecheck")
        outcomes = self.outcomes(report)
        self.assertEqual(list(outcomes), ["machine", "tests", "memcheck", "racecheck", "kernels",
                                          "llama"])
        self.assertEqual([outcomes["machine"], outcomes["memcheck"], outcomes["llama"]],
                         ["passed"] * 3)
        self.assertIn("2 of 3 tests passed\nFAILED: //a:three_test\n", report)
        self.assertIn("Sort/All.* ended with 9:\n  ========= Race reported in Sort\n"
                      "1 of 2 suites without errors, 1 with, 0 not finished\n", report)
        self.assertEqual(outcomes["racecheck"], "FAILED: Sort/All.")
        for suite in ("elementwise", "rows", "vocabulary", "adamw", "matmul"):
            self.assertIn(f"| --suite={suite} | 3 | 1.0 | 3350 | 100 % | - | - |\n", report)
        self.assertRegex(outcomes["kernels"], r"^FAILED: exit status 7: .*device_benchmark ")
        self.assertIn("  an illegal address\n", report)
        self.assertIn("3 of 6 steps passed\n", report)

    def test_a_peer_that_fails_fails_its_step_only(self):
        report = self.hour("--steps=pytorch,llama,two_ranks", status=1)
        outcomes = self.outcomes(report)
        self.assertRegex(report, r"\| PyTorch, eager \| 1,234 \|.*\n\| PyTorch, compiled \| not ")
        self.assertRegex(outcomes["llama"], r"^FAILED: exit status 1: .*gpu_peer.py llama.*compile")
        self.assertEqual(outcomes["two_ranks"], "passed")

    def test_ends_a_step_that_hangs(self):
        # It ignores the interrupt.
        self.script("bazel-bin/benchmarks/device_benchmark", """
            trap '' INT
            echo $$ >>$PIDS
            sleep 1000""")
        pids = self.root / "pids"
        report = self.hour("--steps=kernels,build", "--limit=kernels=1", status=1, PIDS=str(pids))
        outcomes = self.outcomes(report)
        self.assertRegex(outcomes["kernels"],
                         r"^FAILED: exceeded its time limit in: .*device_benchmark --suite=")
        self.assertEqual(outcomes["build"], "passed")
        for pid in pids.read_text().split() if pids.exists() else []:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_reports_what_is_missing(self):
        (self.root / "bin/nvidia-smi").unlink()
        (self.root / "bin/compute-sanitizer").unlink()
        self.script("bin/python", "exit 1")
        report = self.hour("--steps=machine,memcheck,pytorch,attention", status=1, CUDA_HOME="/no")
        outcomes = self.outcomes(report)
        self.assertRegex(outcomes["machine"], "^FAILED: nvidia-smi .*No such file")
        self.assertEqual(outcomes["memcheck"],
                         "FAILED: no compute-sanitizer in PATH, nor /no/bin/compute-sanitizer")
        self.assertRegex(outcomes["pytorch"], "^FAILED: --python=.* does not import torch")
        self.assertEqual(outcomes["attention"], "passed")
        self.assertRegex(report, r"\| attention \|.*\| - \| not measured \| - \|\n")

    def test_refuses_an_unknown_step(self):
        done = subprocess.run([self.root / "tools/gpu_hour", "--steps=kernel"], text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("kernel: no such step; there are machine, build,", done.stderr)
        done = subprocess.run([self.root / "tools/gpu_hour", "--limit=build:3"], text=True,
                              capture_output=True)
        self.assertIn("--limit=build:3: must be STEP=SECONDS", done.stderr)


if __name__ == "__main__":
    unittest.main()
