#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Injects a fault into each path of each kernel, and expects that a kernel test fails.

A path is what one compiled kernel (a template's instance) loads, or stores, by
accesses of one size: whole vectors, scalars, ends of rows. The fault flips a bit
of each of these accesses. The list of kernels is that of the program's symbols,
so every instance that was compiled must run in some test.

usage: kernel_paths_test.py PROGRAM [PART OF PARTS]
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

# Paths whose faults change nothing, and why. Names are those of kernels.
HARMLESS = {}
# Kernels that process vectors, but never a part of one.
WHOLE = {"EmbeddingKernel", "RopeKernel", "ReduceTermsKernel"}
TIMEOUT = 300


def kernels_of(program):
    """Returns {address: name} of the kernels in the program, without the emulated libraries'."""
    text = subprocess.run(["nm", "-C", program], check=True, capture_output=True, text=True).stdout
    kernels = {}
    for line in text.splitlines():
        found = re.match(r"([0-9a-f]+) [tTwWu] (?:void )?crosshatch::internal::.*?(\w+Kernel\b.*)",
                         line)
        if found and "{lambda" not in found[2] and "[clone" not in found[2] \
                and "LaunchKernel" not in line:
            kernels[int(found[1], 16)] = re.sub(r"\(.*", "", found[2].replace("(anonymous", ""))
    return kernels


def run(program, test, **variables):
    """Returns (whether the test passes, seconds)."""
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [program, "--gtest_filter=" + test, "--gtest_fail_fast"],
            env=dict(os.environ, CROSSHATCH_KERNEL_CASES="few", **variables),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT)
        passes = ended.returncode == 0
    except subprocess.TimeoutExpired:
        passes = False
    return passes, time.monotonic() - began


def tests_of(program):
    """Returns the names of the program's tests, without death tests, which fork."""
    tests, suite = [], ""
    text = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True,
                          text=True).stdout
    for line in text.splitlines():
        if line.startswith(" "):
            tests.append(suite + line.split("#")[0].strip())
        elif line.endswith(".") or "." in line.split("#")[0]:
            suite = line.split("#")[0].strip()
    return [test for test in tests if "DeathTest" not in test]


def main(program, part=0, parts=1):
    kernels = kernels_of(program)
    assert len(kernels) > 100, "the program's symbols name %d kernels" % len(kernels)
    tests_by_path = {}
    with tempfile.TemporaryDirectory() as directory, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:

        def record(test):
            file = os.path.join(directory, re.sub(r"\W", "_", test))
            passes, seconds = run(program, test, CROSSHATCH_KERNEL_PATHS=file)
            assert passes, test + " fails without a fault"
            with open(file) as lines:
                return test, seconds, [tuple(line.split()) for line in lines]

        for test, seconds, paths in pool.map(record, tests_of(program)):
            for path in paths:
                tests_by_path.setdefault(path, []).append((seconds, test))
        failures = []
        ran = {int(kernel) for kernel, _, _ in tests_by_path}
        for address, name in sorted(kernels.items(), key=lambda item: item[1]):
            if address not in ran:
                failures.append("no test runs " + name)
        paths = sorted(path for path in tests_by_path if int(path[0]) in kernels)
        stores = {}
        for kernel, access, size in paths:
            if access == "store":
                stores.setdefault(kernel, set()).add(size)
        for kernel, sizes in stores.items():
            name = kernels[int(kernel)]
            found = re.match(r"(\w+)<.*?(\d+)[^<>]*>", name)
            is_vector = name.startswith("Typed") or (
                found and int(found[2]) in (2, 4, 8) and found[1] not in WHOLE)
            if is_vector and sizes == {"16"}:
                failures.append("no test ends a row within a vector in " + name)

        def inject(path):
            # The fastest tests first.
            for _, test in sorted(tests_by_path[path]):
                if not run(program, test, CROSSHATCH_KERNEL_FAULT=" ".join(path))[0]:
                    return path, test
            return path, None

        for (kernel, access, size), test in pool.map(inject, paths[part::parts]):
            name = "%s: wrong %ss of %s bytes" % (kernels[int(kernel)], access, size)
            print("%s: %s" % (name, test or "NO TEST FAILS"), flush=True)
            is_harmless = kernels[int(kernel)].split("<")[0] in HARMLESS
            if (test is None) != is_harmless:
                failures.append(name + (": no test fails" if test is None else ": is not harmless"))
    print("%d kernels, %d paths" % (len(kernels), len(paths)))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
