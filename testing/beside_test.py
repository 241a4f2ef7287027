#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of cases that pass, fail, die and wait for each other."""

import os
import subprocess
import sys
import tempfile
import unittest

TESTING = os.path.dirname(os.path.abspath(__file__))
PROGRAM = """
import os, subprocess, sys, time, unittest
sys.path.append(sys.argv.pop(1))
import beside

class Meeting(unittest.TestCase):
    def meet(self, mine, other):
        directory = os.environ["MEETING"]
        open(os.path.join(directory, mine), "w").close()
        until = time.monotonic() + float(os.environ.get("PATIENCE", 60))
        while not os.path.exists(os.path.join(directory, other)):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def test_first(self):
        self.meet("first", "second")

    def test_second(self):
        self.meet("second", "first")

class Cases(unittest.TestCase):
    def test_fails_in_parts(self):
        for part in 1, 2, 3:
            with self.subTest(part=part):
                self.assertEqual(part, 2)

    def test_errs(self):
        raise ValueError("no luck")

    def test_dies(self):
        os.kill(os.getpid(), 9)

    def test_stops(self):
        raise KeyboardInterrupt

    def test_cleans(self):
        self.addCleanup(print, "cleaned", file=sys.stderr)

if "OWN_CHILD" in os.environ:
    subprocess.Popen(["true"])
beside.main(at_once=int(os.environ.get("AT_ONCE", 2)))
"""


class BesideTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.dir = place.name
        self.program = os.path.join(self.dir, "program.py")
        with open(self.program, "w") as file:
            file.write(PROGRAM)

    def run_cases(self, *names, **variables):
        environment = {"PATH": os.environ["PATH"], "MEETING": self.dir,
                       **variables}
        return subprocess.run([sys.executable, self.program, TESTING, *names],
                              capture_output=True, text=True, timeout=100,
                              env=environment)

    def test_cases_run_beside_one_another(self):
        run = self.run_cases("Meeting")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"2 cases in [\d.]+ s: all passed\n$")

    def test_no_more_than_asked_for_run_at_once(self):
        run = self.run_cases("Meeting", AT_ONCE="1", PATIENCE="0.2")
        self.assertEqual(run.returncode, 1)
        self.assertIn("1 failed: Meeting.test_first\n", run.stderr)

    def test_what_failed_is_printed_and_named(self):
        for name, expected in [
                ("fails_in_parts", ["(part=1)", "1 != 2", "(part=3)", "3 != 2"]),
                ("errs", ["ValueError: no luck"]),
                ("dies", []),
                # Ends the case without a result.
                ("stops", ["KeyboardInterrupt"])]:
            with self.subTest(name=name):
                run = self.run_cases("Cases.test_" + name)
                self.assertEqual(run.returncode, 1, run.stderr)
                self.assertRegex(run.stderr,
                                 rf"(?m)^FAILED +[\d.]+ s  Cases.test_{name}$")
                self.assertTrue(run.stderr.endswith(
                    f" s: 1 failed: Cases.test_{name}\n"), run.stderr)
                for text in expected:
                    self.assertIn(text, run.stderr)
                self.assertNotIn("(part=2)", run.stderr)

    def test_all_that_failed_are_named(self):
        run = self.run_cases("Cases", "Meeting")
        self.assertEqual(run.returncode, 1)
        self.assertIn(
            "4 failed: Cases.test_dies, Cases.test_errs, "
            "Cases.test_fails_in_parts, Cases.test_stops\n", run.stderr)
        self.assertRegex(run.stderr, r"(?m)^ok +[\d.]+ s  Cases.test_cleans$")
        self.assertIn("cleaned\n", run.stderr)

    def test_a_pattern_of_bazel_s_picks_cases(self):
        run = self.run_cases(TESTBRIDGE_TEST_ONLY="Meeting.*")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, "^(ok .*\n){2}2 cases ")

    def test_a_process_of_the_program_s_own_is_no_case(self):
        run = self.run_cases("Meeting", OWN_CHILD="1")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("2 cases ", run.stderr)

    def test_names_and_patterns_of_nothing_fail(self):
        run = self.run_cases(TESTBRIDGE_TEST_ONLY="Meeting.test_third")
        self.assertEqual((run.returncode, run.stderr),
                         (1, "no case is named Meeting.test_third\n"))
        run = self.run_cases("Nobody")
        self.assertEqual(run.returncode, 1)
        self.assertIn("Nobody", run.stderr)


if __name__ == "__main__":
    unittest.main()
