#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_lm when the system refuses: mount points, overlay layers, other users'
directories, full disks, no memory for threads. Complete weights stay, and each
failure is one line that names the object and the place.

usage: train_lm_system_test.py PROGRAM
"""

import ctypes
import hashlib
import os
import re
import resource
import subprocess
import sys
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
import mount_namespace  # noqa: E402

mount_namespace.enter(without="mount points, overlays and full disks")

from train_lm_testcase import PROGRAM, SMALL, TrainLmTestCase  # noqa: E402

GIB = 1 << 30
NOBODY = 65534


def without_privileges():
    """Drops the capabilities by which a root child bypasses file modes."""
    libc = ctypes.CDLL(None, use_errno=True)
    drop_from_bounding_set = 24  # PR_CAPBSET_DROP
    for capability in range(64):
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)


def may_give_away(path):
    """Returns whether this process may change the owner of files."""
    try:
        os.chown(path, NOBODY, NOBODY)
    except OSError:
        return False
    os.chown(path, os.getuid(), os.getgid())
    return True


class TrainLmSystemTest(mount_namespace.MountingTestCase, TrainLmTestCase):
    def setUp(self):
        # Unmounts before the directory is removed.
        TrainLmTestCase.setUp(self)
        mount_namespace.MountingTestCase.setUp(self)

    def train(self, *flags, status=0, **options):
        """Returns stderr: one line if it fails."""
        run = subprocess.run(
            [PROGRAM, "--text=" + self.text, *SMALL, *flags],
            capture_output=True, text=True, timeout=120, **options)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        self.assertEqual(run.stderr.count("\n"), 0 if status == 0 else 1,
                         run.stderr)
        return run.stderr

    def saved(self, place):
        """Saves a model there; returns the content of its files."""
        self.train("--save=" + place)
        return self.contents(place)

    def contents(self, place):
        contents = {}
        for name in ["config.json", "model.safetensors"]:
            with open(os.path.join(place, name), "rb") as file:
                contents[name] = hashlib.sha256(file.read()).hexdigest()
        return contents

    def test_a_layer_of_an_overlay_cannot_be_replaced_and_is_not(self):
        if not mount_namespace.may_mount():
            return
        disk = self.tmpfs(self.path("disk"), "16m")
        below, above, work = (os.path.join(disk, d) for d in "bwa")
        for directory in below, above, work:
            os.mkdir(directory)
        old = self.saved(os.path.join(below, "model"))
        options = f"lowerdir={below},upperdir={above},workdir={work}"
        overlay = self.mount(self.path("overlay"), "-t", "overlay", "-o",
                             options + ",redirect_dir=off", "none")
        place = os.path.join(overlay, "model")
        said = self.train("--save=" + place, "--overwrite", status=1)
        self.assertIn(place, said)
        self.assertIn("is in a lower layer of an overlay", said)
        self.assertEqual(os.listdir(overlay), ["model"])
        self.assertEqual(self.contents(place), old)
        # Files that are not in the lower layer behave as usual.
        for flags in [], ["--overwrite", "--seed=3"]:
            self.train("--save=" + os.path.join(overlay, "new"), *flags)
        self.assertEqual(sorted(os.listdir(overlay)), ["model", "new"])
        self.assertNotEqual(self.contents(os.path.join(overlay, "new")), old)

    def test_what_is_mounted_in_a_model_stays(self):
        if not mount_namespace.may_mount():
            return
        place = self.path("model")
        old = self.saved(place)
        data = self.tmpfs(os.path.join(place, "data"), "1m")
        with open(os.path.join(data, "mine"), "w") as file:
            file.write("mine")
        said = self.train("--save=" + place, "--overwrite", status=1)
        self.assertIn(data + " is a mount point", said)
        self.assertEqual(os.listdir(data), ["mine"])
        self.assertEqual(self.contents(place), old)

    def test_a_mount_point_is_refused_and_what_is_below_it_not(self):
        if not mount_namespace.may_mount():
            return
        disk = self.tmpfs(self.path("disk"), "4m")
        for flags in [], ["--overwrite"]:
            said = self.train("--save=" + disk, *flags, status=1)
            self.assertIn("it is a mount point", said)
            self.assertEqual(os.listdir(disk), [])
        self.train("--save=" + os.path.join(disk, "model"))
        self.assertEqual(os.listdir(disk), ["model"])

    def test_a_disk_that_is_full_in_the_end_keeps_the_model_before(self):
        if not mount_namespace.may_mount():
            return
        disk = self.tmpfs(self.path("disk"), "4m")
        place = os.path.join(disk, "model")
        old = self.saved(place)
        size = os.path.getsize(os.path.join(place, "model.safetensors"))
        # Space for half of it.
        used = os.statvfs(disk)
        free = used.f_bavail * used.f_bsize
        with open(os.path.join(disk, "other"), "wb") as file:
            file.write(bytes(free - size // 2))
        said = self.train("--save=" + place, "--overwrite", "--mesh=fsdp:2",
                          status=1)
        self.assertIn("No space left on device", said)
        self.assertEqual(self.contents(place), old)
        self.assertEqual(sorted(os.listdir(disk)), ["model", "other"])
        os.remove(os.path.join(disk, "other"))
        self.train("--save=" + place, "--overwrite", "--mesh=fsdp:2")

    def test_another_users_directory_under_a_sticky_parent_stays(self):
        if not may_give_away(self.dir):
            print("NOT CHECKED: this user may make no files another's, so sticky "
                  "directories are not", file=sys.stderr)
            return
        parent = self.path("shared")
        place = os.path.join(parent, "model")
        os.mkdir(parent)
        old = self.saved(place)
        for path in [place, *(os.path.join(place, n) for n in old)]:
            os.chown(path, NOBODY, NOBODY)
            os.chmod(path, 0o777)
        os.chown(parent, NOBODY, NOBODY)
        os.chmod(parent, 0o1777)
        said = self.train("--save=" + place, "--overwrite", status=1,
                          preexec_fn=without_privileges)
        self.assertIn(place, said)
        self.assertIn("Operation not permitted", said)
        self.assertEqual(self.contents(place), old)
        self.assertEqual(os.listdir(parent), ["model"])
        # In such a directory, too, one's own file is not another user's.
        mine = os.path.join(parent, "mine")
        for flags in [], ["--overwrite"]:
            self.train("--save=" + mine, *flags, preexec_fn=without_privileges)
        self.assertEqual(sorted(os.listdir(parent)), ["mine", "model"])

    def test_no_room_for_a_thread_is_an_error_of_one_line(self):
        """Limits the process so that only some threads get their stacks of 1 GiB."""
        saved = self.path("saved")
        outcomes = set()
        for room in [*range(1, 20), *range(20, 60, 5)]:
            def limit():
                resource.setrlimit(resource.RLIMIT_STACK, (GIB, GIB))
                resource.setrlimit(resource.RLIMIT_AS,
                                   (room * GIB + GIB // 2,) * 2)
            # Including threads of an asynchronous save.
            run = subprocess.run(
                [PROGRAM, "--text=" + self.text, *SMALL, "--mesh=fsdp:3",
                 "--save=" + saved, "--overwrite", "--steps=1",
                 "--checkpoints=" + self.path(f"steps{room}"), "--save_async"],
                capture_output=True, text=True, timeout=120, preexec_fn=limit)
            with self.subTest(room=room):
                self.assertIn(run.returncode, (0, 1), run.stderr)
                outcomes.add(run.returncode)
                if run.returncode == 0:
                    self.assertEqual(run.stderr, "")
                    continue
                # A failed save is reported at once and at the end.
                lines = set(re.sub(r"^train_lm: (rank \d: )?", "", line)
                            for line in run.stderr.splitlines())
                self.assertEqual(len(lines), 1, run.stderr)
                self.assertRegex(run.stderr, "cannot start |out of memory")
        self.assertEqual(outcomes, {0, 1})


if __name__ == "__main__":
    unittest.main()
