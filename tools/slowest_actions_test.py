#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The slowest actions of profiles in Bazel's format."""

import gzip
import json
import os
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slowest_actions")


def action(name, seconds):
    return {"cat": "action processing", "name": name, "dur": seconds * 1e6}


class SlowestActionsTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name

    def profile(self, name, *events):
        path = os.path.join(self.scratch, name)
        with gzip.open(path, "wt") as stream:
            json.dump({"traceEvents": events}, stream)
        return path

    def said(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.splitlines()

    def test_slowest_of_all_profiles_first(self):
        one = self.profile("one", action("Compiling a.cc", 3), action("Linking a", 1),
                           {"cat": "general information", "name": "init", "dur": 9e9})
        two = self.profile("two", action("Testing //b", 2.5))
        lines = self.said("--count=2", f"build={one}", f"tsan={two}")
        self.assertEqual([line.split() for line in lines], [
            ["3.0", "s", "build", "Compiling", "a.cc"],
            ["2.5", "s", "tsan", "Testing", "//b"]])

    def test_what_is_not_a_profile_has_no_actions(self):
        path = os.path.join(self.scratch, "cut")
        with open(path, "wb") as stream:
            stream.write(gzip.compress(b'{"traceEvents": [')[:-4])
        self.assertEqual(self.said(path, os.path.join(self.scratch, "none")), [])


if __name__ == "__main__":
    unittest.main()
