#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills a program that saves checkpoints, at random moments: what it leaves
under the checkpoint's name is a version whole, none before the last that was
said to be there; what it leaves beside loads whole or says why not.

usage: kill_test.py PROGRAM
where PROGRAM is //checkpoint:save_loop. CROSSHATCH_KILLS is the number of
moments, half of them in asynchronous saves; CROSSHATCH_FUZZ_SEED chooses them.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
KILLS = int(os.environ.get("CROSSHATCH_KILLS", "16"))
SEED = int(os.environ.get("CROSSHATCH_FUZZ_SEED", "1"))


def check(path):
    """The version that `path` holds, or what is said of it."""
    done = subprocess.run([PROGRAM, "check", path], capture_output=True,
                          text=True, timeout=60)
    if done.returncode == 0:
        return int(done.stdout), ""
    if done.returncode != 1 or not done.stderr.strip():
        raise AssertionError(f"check of {path} ended with {done.returncode}: "
                             f"{done.stderr}")
    return None, done.stderr


class KillTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        self.dir = os.path.join(self.root, "run")

    def kill_after(self, mode, seconds):
        """Returns the last version that was said to be there."""
        process = subprocess.Popen([PROGRAM, mode, self.dir],
                                   stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        out, err = process.communicate()
        self.assertEqual(process.returncode, -9, err)
        said = (first + out).split("\n")
        return int([line for line in said if line][-1])

    def test_what_is_left_is_whole(self):
        moments = random.Random(SEED)
        whole = damaged = 0
        for kill in range(KILLS):
            mode = ("save", "async")[kill % 2]
            shutil.rmtree(self.dir, ignore_errors=True)
            said = self.kill_after(mode, moments.uniform(0, 0.1))
            version, why = check(self.dir)
            self.assertIsNotNone(version, f"{mode}: {why}")
            self.assertGreaterEqual(version, said)
            # The next one may be there, unsaid; of asynchronous ones that and
            # the one that is being written.
            self.assertLessEqual(version, said + 2)
            for name in os.listdir(self.root):
                path = os.path.join(self.root, name)
                if path == self.dir:
                    continue
                beside, why = check(path)
                whole += beside is not None
                damaged += beside is None
                shutil.rmtree(path)
        print(f"{KILLS} kills with seed {SEED} left {whole} whole checkpoints "
              f"beside and {damaged} that say why they are none")


if __name__ == "__main__":
    unittest.main()
