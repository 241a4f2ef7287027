#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills a program that saves checkpoints at random moments. Under the
checkpoint's name is then a complete version, not older than the last that was
reported. Other directories load completely or with an error. Does the same with
the steps of a run, and kills one process of a job.

usage: kill_test.py PROGRAM
where PROGRAM is //checkpoint:save_loop. CROSSHATCH_KILLS is the number of
kills, half of them in asynchronous saves; an eighth each are in a job and in a
run. CROSSHATCH_FUZZ_SEED seeds the random moments.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
from mpi_place import environment_in, make_place  # noqa: E402

PROGRAM = sys.argv.pop(1)
KILLS = int(os.environ.get("CROSSHATCH_KILLS", "16"))
SEED = int(os.environ.get("CROSSHATCH_FUZZ_SEED", "1"))


def check(path, mode="check"):
    """Returns the version in `path` and ""; or None and the error."""
    done = subprocess.run([PROGRAM, mode, path], capture_output=True,
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

    def begin(self, command, **variables):
        """Returns the process and its first line."""
        # Unbuffered, because communicate() does not see buffered data.
        process = subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE,
                                   env={**os.environ, **variables})
        return process, process.stdout.readline()

    def kill_after(self, mode, seconds):
        """Returns the last reported version."""
        process, first = self.begin([PROGRAM, mode, self.dir])
        time.sleep(seconds)
        process.kill()
        out, err = process.communicate()
        self.assertEqual(process.returncode, -9, err)
        return self.last_of(first + out)

    def kill_one_of_a_job(self, mode, rank, seconds):
        """Does the same with two processes; kills that of `rank`."""
        process, first = self.begin(
            ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none",
             PROGRAM, mode, self.dir], **environment_in(make_place(self)))
        time.sleep(seconds)
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            children = sorted(int(child) for child in file.read().split())
        if len(children) != 2:
            process.kill()
            self.fail(f"the job ended by itself: {process.communicate()[1]}")
        os.kill(children[rank], signal.SIGKILL)
        # The other process ends as well, by mpirun or by itself.
        out, err = process.communicate(timeout=120)
        self.assertNotEqual(process.returncode, 0, err)
        return self.last_of(first + out)

    def last_of(self, said):
        """Returns the last complete line."""
        return int(said[:said.rindex(b"\n")].split(b"\n")[-1])

    def assert_left(self, said, mode):
        """Checks that `self.dir` has a complete, recent version."""
        version, why = check(self.dir)
        self.assertIsNotNone(version, f"{mode}: {why}")
        self.assertGreaterEqual(version, said)
        # The next version may exist unreported; of asynchronous saves, also the
        # one after it.
        self.assertLessEqual(version, said + 2)

    def test_what_is_left_is_whole(self):
        moments = random.Random(SEED)
        whole = damaged = 0
        for kill in range(KILLS):
            mode = ("save", "async")[kill % 2]
            shutil.rmtree(self.dir, ignore_errors=True)
            said = self.kill_after(mode, moments.uniform(0, 0.1))
            self.assert_left(said, mode)
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

    def test_a_run_keeps_its_steps(self):
        moments = random.Random(SEED + 1)
        for kill in range(max(KILLS // 8, 2)):
            mode = ("keep", "keep_async")[kill % 2]
            shutil.rmtree(self.dir, ignore_errors=True)
            said = self.kill_after(mode, moments.uniform(0.05, 0.2))
            # Every directory with a step's name is complete.
            latest, why = check(self.dir, "check_run")
            self.assertIsNotNone(latest, f"{mode}: {why}")
            self.assertGreaterEqual(latest, said)
            self.assertLessEqual(latest, said + 2)
            steps = [name for name in os.listdir(self.dir)
                     if name.startswith("step-") and "." not in name]
            self.assertIn(f"step-{latest:06}", steps)
            if latest > 1:
                self.assertIn(f"step-{latest - 1:06}", steps)
            self.assertLessEqual(len(steps), 3)

    @unittest.skipUnless(shutil.which("mpirun"),
                         "NOT CHECKED: one process of a job, without mpirun")
    def test_a_job_that_loses_a_process_leaves_what_is_whole(self):
        moments = random.Random(SEED + 2)
        for kill in range(max(KILLS // 8, 2)):
            mode = ("save", "async")[kill % 2]
            shutil.rmtree(self.dir, ignore_errors=True)
            said = self.kill_one_of_a_job(mode, kill // 2 % 2,
                                          moments.uniform(0, 0.2))
            self.assert_left(said, mode)


if __name__ == "__main__":
    unittest.main()
