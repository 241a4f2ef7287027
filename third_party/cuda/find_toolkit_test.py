#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Toolkits in the layouts of installers, Debian and Python packages, and none."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import find_toolkit


class FindToolkitTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)

    def files(self, *names):
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def find(self, place):
        return find_toolkit.find({"CUDA_HOME": str(self.root / place)})

    def test_an_installed_toolkit(self):
        self.files("cuda/bin/nvcc", "cuda/include/cuda_runtime.h", "cuda/lib64/libcudart_static.a",
                   "cuda/lib64/libcublasLt.so", "cuda/lib64/libcublasLt.so.13")
        found = self.find("cuda")
        self.assertEqual(found["nvcc"], str(self.root / "cuda/bin/nvcc"))
        self.assertEqual(found["includes"], [str(self.root / "cuda/include")])
        lib = str(self.root / "cuda/lib64")
        self.assertEqual(found["libraries"]["cudart"],
                         ["-L" + lib, "-lcudart_static", "-ldl", "-lrt", "-lpthread"])
        self.assertEqual(found["libraries"]["cublas_lt"],
                         ["-L" + lib, "-Wl,-rpath," + lib, "-lcublasLt"])
        self.assertIsNone(found["libraries"]["nccl"])

    def test_python_packages_since_cuda_13(self):
        self.files("nvidia/cu13/bin/nvcc", "nvidia/cu13/include/cuda_runtime.h",
                   "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcublasLt.so.13",
                   "nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/libnccl.so.2",
                   "nvidia/cusparselt/include/cusparseLt.h")
        for place in ("nvidia", "nvidia/cu13"):
            found = self.find(place)
            self.assertEqual(found["nvcc"], str(self.root / "nvidia/cu13/bin/nvcc"))
            self.assertEqual(
                found["includes"],
                [str(self.root / "nvidia" / part / "include") for part in ("cu13", "nccl")])
            self.assertEqual(found["libraries"]["cudart"][-1], "-l:libcudart.so.13")
            self.assertEqual(found["libraries"]["nccl"][-1], "-l:libnccl.so.2")

    def test_python_packages_before_cuda_13(self):
        self.files("nvidia/cuda_nvcc/bin/nvcc", "nvidia/cuda_nvcc/include/crt/host_defines.h",
                   "nvidia/cuda_runtime/include/cuda_runtime.h",
                   "nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cublas/lib/libcublasLt.so.12")
        found = self.find("nvidia")
        self.assertEqual(found["nvcc"], str(self.root / "nvidia/cuda_nvcc/bin/nvcc"))
        self.assertEqual(
            found["includes"],
            [str(self.root / "nvidia" / part / "include") for part in ("cuda_nvcc", "cuda_runtime")])
        self.assertEqual(found["libraries"]["cublas_lt"][-1], "-l:libcublasLt.so.12")

    def test_the_version_of_nccl(self):
        self.files("a/cuda.h", "b/nccl.h", "c/nccl.h")
        (self.root / "b/nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_VERSION_CODE 22809\n")
        places = [str(self.root / place) for place in ("a", "missing", "b")]
        self.assertEqual(find_toolkit.nccl_version(places), 22809)
        self.assertEqual(find_toolkit.nccl_version(places[:1]), 0)
        self.assertEqual(find_toolkit.nccl_version([str(self.root / "c")]), 0)

    def test_what_is_not_whole_is_said(self):
        self.files("a/bin/nvcc", "b/bin/nvcc", "b/include/cuda_runtime.h")
        for place, what in [("a", "bin/nvcc, but no include/cuda_runtime.h"),
                            ("b", "bin/nvcc, but no libcudart"), ("c", "no bin/nvcc")]:
            found = self.find(place)
            self.assertEqual(found["nvcc"], "")
            self.assertEqual(found["searched"],
                             ["%s ($CUDA_HOME): %s" % (self.root / place, what)])

    def test_architectures_come_in_order(self):
        for text, expected in [("80,90,100", [80, 90, 100]), ("100,80,90", [80, 90, 100]),
                               ("90", [90]), ("90,90", [90])]:
            self.assertEqual(
                find_toolkit.architectures({"CROSSHATCH_CUDA_ARCHITECTURES": text}), expected)
        self.assertEqual(find_toolkit.architectures({}), [80, 90, 100])

    def test_what_are_no_architectures_is_said(self):
        for text in ["", "abc", "sm_90", "90a", "9.0", "80,", "80 90", "0", "-80", "8000"]:
            with self.assertRaisesRegex(
                    ValueError, "ARCHITECTURES=%s is no list of compute capabilities" % text):
                find_toolkit.architectures({"CROSSHATCH_CUDA_ARCHITECTURES": text})

    def test_what_is_older_than_the_kernels_is_said(self):
        with self.assertRaisesRegex(ValueError, "=90,75: the kernels need 80 or later"):
            find_toolkit.architectures({"CROSSHATCH_CUDA_ARCHITECTURES": "90,75"})

    def test_a_place_that_is_named_is_the_only_one(self):
        self.assertEqual(len(find_toolkit.places({"CUDA_PATH": "/x", "PATH": "/usr/bin"})), 1)

    def test_else_the_usual_places_then_the_path_then_python(self):
        self.files("t/bin/nvcc", "venv/lib/python3.11/site-packages/x")
        os.chmod(self.root / "t/bin/nvcc", 0o755)
        found = find_toolkit.places({
            "PATH": str(self.root / "t/bin"),
            "VIRTUAL_ENV": str(self.root / "venv")
        })
        self.assertEqual(found[0], ("/usr/local/cuda", ""))
        self.assertIn((os.path.realpath(self.root / "t"), "nvcc in $PATH"), found)
        self.assertIn((str(self.root / "venv/lib/python3.11/site-packages/nvidia"),
                       "Python packages"), found)

    def test_the_newest_of_several_is_first(self):
        for version in ("12.9", "13.0", "9.2"):
            (self.root / ("cuda-" + version)).mkdir()
        self.assertEqual([os.path.basename(p) for p in find_toolkit.newest(str(self.root / "cuda-*"))],
                         ["cuda-13.0", "cuda-12.9", "cuda-9.2"])

    def test_devices_are_counted(self):
        self.files("dev/nvidia0", "dev/nvidia1", "dev/nvidia10", "dev/nvidiactl", "dev/nvidia-uvm")
        self.assertEqual(find_toolkit.count_devices(str(self.root / "dev")), 3)

    def test_nothing_is_found_where_nothing_is(self):
        with mock.patch.object(find_toolkit, "places", return_value=[("/no/such", "")]):
            found = find_toolkit.find({})
        self.assertEqual((found["nvcc"], found["includes"]), ("", []))


if __name__ == "__main__":
    unittest.main()
