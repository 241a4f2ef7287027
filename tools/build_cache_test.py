#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cache's directory, and that trimming keeps the latest entries."""

import importlib.machinery
import importlib.util
import os
import pathlib
import tempfile
import unittest
from unittest import mock

_loader = importlib.machinery.SourceFileLoader(
    "build_cache",
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "build_cache"))
build_cache = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("build_cache", _loader))
_loader.exec_module(build_cache)


class BuildCacheTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)

    def file(self, name, size, used):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (used, used))
        return path

    def test_variables_choose_the_place(self):
        for variables, root in [
                ({"HOME": "/h"}, "/h/.cache/crosshatch"),
                ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/crosshatch"),
                ({"XDG_CACHE_HOME": "/x", "CROSSHATCH_CACHE": "/c"}, "/c"),
        ]:
            with mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(str(build_cache.cache_root()), root)
        with mock.patch.dict(os.environ, {"CROSSHATCH_CACHE": ""}):
            self.assertIsNone(build_cache.cache_root())
            self.assertIsNone(build_cache.directory())

    def test_another_compiler_has_another_directory(self):
        compiler = self.file("gcc", 10, 1000)
        compiler.chmod(0o755)
        with mock.patch.dict(os.environ, {"CC": str(compiler)}):
            first = build_cache.system_key()
            self.assertEqual(build_cache.system_key(), first)
            os.utime(compiler, (2000, 2000))
            self.assertNotEqual(build_cache.system_key(), first)

    def test_configure_writes_what_bazelrc_reads(self):
        with mock.patch.object(build_cache, "ROOT", self.root), \
                mock.patch.dict(os.environ, {"CROSSHATCH_CACHE": "/c"}):
            build_cache.configure()
            written = (self.root / ".bazelrc.cache").read_text()
            self.assertIn(f"build --disk_cache={build_cache.directory()}\n", written)
            self.assertIn("guard_against_concurrent_changes\n", written)
            before = (self.root / ".bazelrc.cache").stat().st_mtime_ns
            build_cache.configure()
            self.assertEqual((self.root / ".bazelrc.cache").stat().st_mtime_ns, before)
        with mock.patch.object(build_cache, "ROOT", self.root), \
                mock.patch.dict(os.environ, {"CROSSHATCH_CACHE": ""}):
            build_cache.configure()
            self.assertNotIn("disk_cache", (self.root / ".bazelrc.cache").read_text())
        self.assertEqual(os.listdir(self.root), [".bazelrc.cache"])

    def test_sandboxes_lie_in_memory_where_it_has_room(self):
        root = str(self.root)
        free = os.statvfs(root)
        free = free.f_bavail * free.f_frsize
        for kind, needed, flags in [("tmpfs", free // 2, [f"--sandbox_base={root}"]),
                                    ("tmpfs", free * 2, []), ("ext4", 0, [])]:
            mounts = mock.mock_open(read_data=f"none {root} {kind} rw 0 0\n")
            with mock.patch.dict(os.environ, {"CROSSHATCH_CACHE": ""}), \
                    mock.patch.object(build_cache, "SANDBOXES", root), \
                    mock.patch.object(build_cache, "SANDBOX_BYTES", needed), \
                    mock.patch("builtins.open", mounts):
                self.assertEqual(build_cache.flags(), flags)
        self.assertFalse(build_cache.holds_sandboxes(self.root / "none"))

    def test_trim_removes_what_was_used_longest_ago(self):
        old = self.file("k1/cas/ab/old", 100, 1000)
        newer = self.file("k1/ac/cd/newer", 50, 2000)
        newest = self.file("k2/cas/ef/newest", 200, 3000)
        self.assertEqual(build_cache.trim(self.root, 350), (350, 0))
        self.assertEqual(build_cache.trim(self.root, 349), (250, 100))
        self.assertFalse(old.exists())
        self.assertTrue(newer.exists() and newest.exists())
        self.assertEqual(build_cache.trim(self.root, 0), (0, 250))

    def test_reading_a_file_keeps_it(self):
        written_first = self.file("k/cas/a", 100, 1000)
        self.file("k/cas/b", 100, 2000)
        os.utime(written_first, (3000, 1000))  # (accessed, modified)
        build_cache.trim(self.root, 100)
        self.assertTrue(written_first.exists())


if __name__ == "__main__":
    unittest.main()
