# SPDX-License-Identifier: Apache-2.0
"""For tests that mount file systems: enter() restarts the program in its own
mount namespace, which does not affect the machine.
"""

import os
import subprocess
import sys
import unittest

_INSIDE = "CROSSHATCH_MAY_MOUNT"


def enter(without):
    """Must be called first. If mounting is not allowed, prints that `without`
    is not checked."""
    if _INSIDE in os.environ:
        return
    for options in (["--mount"], ["--map-root-user", "--mount"]):
        probe = ["unshare", *options, "sh", "-c",
                 'd=$(mktemp -d) && mount -t tmpfs -o size=64k none "$d" && '
                 'umount "$d" && rmdir "$d"']
        try:
            allowed = subprocess.run(probe, capture_output=True).returncode == 0
        except OSError:
            break
        if allowed:
            os.environ[_INSIDE] = "yes"
            os.execvp("unshare", ["unshare", *options, sys.executable, *sys.argv])
    print(f"NOT CHECKED: mounting is not allowed here, so {without} are not",
          file=sys.stderr)
    os.environ[_INSIDE] = "no"


def may_mount():
    return os.environ[_INSIDE] == "yes"


class MountingTestCase(unittest.TestCase):
    """Unmounts file systems when a test ends."""

    def setUp(self):
        self.mounted = []
        self.addCleanup(self.unmount_all)

    def unmount_all(self):
        for path in reversed(self.mounted):
            subprocess.run(["umount", path], check=True)

    def mount(self, path, *options):
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", *options, path], check=True)
        self.mounted.append(path)
        return path

    def tmpfs(self, path, size):
        return self.mount(path, "-t", "tmpfs", "-o", f"size={size}", "none")

    def mount_file(self, source, path):
        subprocess.run(["mount", "--bind", source, path], check=True)
        self.mounted.append(path)
