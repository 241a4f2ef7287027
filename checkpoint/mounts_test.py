#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves checkpoints on real file systems: on full and read-only ones, across
file systems, mount points and links, and by two processes at once. Under the
checkpoint's name is always a complete version, and no version is lost.

usage: mounts_test.py PROGRAM
where PROGRAM is //checkpoint:save_loop.

Mounts in a namespace of its own (unshare), which does not affect the machine.
If mounting is not allowed, prints that and runs the checks without mounts.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
import mount_namespace  # noqa: E402

mount_namespace.enter(without="full disks, other file systems and mount points")
PROGRAM = os.path.abspath(sys.argv.pop(1))
MAY_MOUNT = mount_namespace.may_mount()
# Approximate size of a version: eight tensors of 251 x 64 float32.
STATE = 8 * 251 * 64 * 4


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True,
                          timeout=100)


class MountsTest(mount_namespace.MountingTestCase):
    def setUp(self):
        self.root = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        super().setUp()

    def path(self, *names):
        return os.path.join(self.root, *names)

    def save(self, path, version):
        """Returns the error of a save; "" if it succeeded."""
        done = run("once", path, str(version))
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertEqual(done.returncode == 0, done.stderr == "", done.stderr)
        return done.stderr

    def version(self, path):
        done = run("check", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout)

    @unittest.skipUnless(MAY_MOUNT, "mounts")
    def test_a_full_disk_keeps_the_version_before(self):
        # From too small for one version to large enough for two.
        outcomes = set()
        for tenths in range(5, 26, 2):
            disk = self.tmpfs(self.path(f"disk{tenths}"), STATE * tenths // 10)
            run_dir = os.path.join(disk, "run")
            there = 0
            for version in (1, 2):
                said = self.save(run_dir, version)
                if not said:
                    there = version
                else:
                    self.assertIn("No space left on device", said)
                    # Incomplete files are removed, so the disk can be used
                    # again.
                    self.assertEqual(os.listdir(disk), ["run"] if there else [])
                if there:
                    self.assertEqual(self.version(run_dir), there)
            outcomes.add(there)
            if there == 1:
                subprocess.run(["mount", "-o", f"remount,size={STATE * 3}", disk],
                               check=True)
                self.assertEqual(self.save(run_dir, 3), "")
                self.assertEqual(self.version(run_dir), 3)
        self.assertEqual(outcomes, {0, 1, 2})

    @unittest.skipUnless(MAY_MOUNT, "mounts")
    def test_a_disk_that_fills_while_training_goes_on_keeps_what_was_there(self):
        disk = self.tmpfs(self.path("disk"), STATE * 7 // 2)
        run_dir = os.path.join(disk, "run")
        # A full disk has no room for a new file either.
        other = open(os.path.join(disk, "other"), "wb", buffering=0)
        self.addCleanup(other.close)
        saver = subprocess.Popen([PROGRAM, "async", run_dir],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        self.addCleanup(saver.kill)
        for _ in range(3):
            said = saver.stdout.readline()
        # Another program fills the disk and takes the space of removed
        # versions. Otherwise the next version might have just enough.
        while saver.poll() is None:
            try:
                other.write(bytes(1 << 14))
            except OSError:
                time.sleep(0.001)
        out, err = saver.communicate(timeout=100)
        self.assertEqual(saver.returncode, 1, err)
        self.assertIn("No space left on device", err)
        last = int(([said] + out.splitlines())[-1])
        self.assertGreaterEqual(self.version(run_dir), last)
        other.truncate(0)
        self.assertEqual(self.save(run_dir, 99), "")
        self.assertEqual(self.version(run_dir), 99)

    @unittest.skipUnless(MAY_MOUNT, "mounts")
    def test_a_mount_point_cannot_be_replaced_and_is_not(self):
        place = self.tmpfs(self.path("place"), STATE * 3)
        with open(os.path.join(place, "mine"), "w") as file:
            file.write("mine")
        said = self.save(place, 1)
        self.assertIn(place, said)
        self.assertEqual(os.listdir(place), ["mine"])
        # Below the mount point there are space and free names.
        self.assertEqual(self.save(os.path.join(place, "run"), 2), "")
        self.assertEqual(self.version(os.path.join(place, "run")), 2)

    @unittest.skipUnless(MAY_MOUNT, "mounts")
    def test_a_file_that_is_mounted_in_a_checkpoint_stays(self):
        run_dir = self.path("run")
        self.assertEqual(self.save(run_dir, 1), "")
        notes = os.path.join(run_dir, "notes")
        for path in (notes, self.path("source")):
            with open(path, "w") as file:
                file.write("mine")
        self.mount_file(self.path("source"), notes)
        said = self.save(run_dir, 2)
        # It could not be moved to the new directory, so no save begins.
        self.assertIn(notes + " is a mount point, which cannot be moved", said)
        self.assertEqual(self.version(run_dir), 1)
        self.assertEqual(sorted(os.listdir(self.root)), ["run", "source"])
        with open(notes) as file:
            self.assertEqual(file.read(), "mine")

    @unittest.skipUnless(MAY_MOUNT, "mounts")
    def test_a_link_to_another_file_system_leads_there(self):
        disk = self.tmpfs(self.path("disk"), STATE * 3)
        os.mkdir(os.path.join(disk, "run"))
        link = self.path("link")
        os.symlink(os.path.join(disk, "run"), link)
        for version in (1, 2):
            self.assertEqual(self.save(link, version), "")
            self.assertTrue(os.path.islink(link))
            self.assertEqual(self.version(os.path.join(disk, "run")), version)
        self.assertEqual(os.listdir(disk), ["run"])

    @unittest.skipUnless(MAY_MOUNT, "mounts")
    def test_a_read_only_disk_is_said_and_left_alone(self):
        disk = self.tmpfs(self.path("disk"), STATE * 3)
        run_dir = os.path.join(disk, "run")
        self.assertEqual(self.save(run_dir, 1), "")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        self.assertIn("Read-only file system", self.save(run_dir, 2))
        self.assertEqual(self.version(run_dir), 1)

    def test_of_savers_at_once_each_has_its_version_or_says_where_it_lies(self):
        for attempt in range(4):
            run_dir = self.path(f"run{attempt}")
            self.assertEqual(self.save(run_dir, 1), "")
            savers = {version: subprocess.Popen(
                [PROGRAM, "once", run_dir, str(version)], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True) for version in (2, 3, 4)}
            lost = {}
            for version, saver in savers.items():
                _, said = saver.communicate(timeout=100)
                if saver.returncode != 0:
                    lost[version] = said
            self.assertLess(len(lost), 3, "none has saved")
            there = self.version(run_dir)
            self.assertIn(there, set(savers) - set(lost), lost)
            for version, said in lost.items():
                # Complete data are reported and are where the error says.
                beside = [name for name in os.listdir(self.root)
                          if name.startswith(f"run{attempt}.") and
                          self.path(name) in said]
                self.assertTrue(beside, said)
                self.assertIn(version, [self.version(self.path(name))
                                        for name in beside])


if __name__ == "__main__":
    unittest.main()
