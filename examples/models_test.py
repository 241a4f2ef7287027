#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains an example on several meshes; losses and norms equal those of one rank.
The step is verified on each of them.

usage: models_test.py PROGRAM MESH...
"""

import re
import subprocess
import sys

# Both are sums of float32 in another order. A loss of about 4 is the mean of
# some 60 such losses. Twelve steps of 3e-3 change it by at most 3e-5 due to the
# rounding of gradients, 2^-24 for each of some ten thousand elements. A norm
# has at least half of its digits, because its square is a sum of as many terms.
STEPS, LOSS, NORM = 12, 3e-5, 1e-3


def run(program, mesh):
    output = subprocess.run([program, *mesh], check=True, text=True,
                            capture_output=True).stdout
    steps = re.findall(r"^step (\d+) loss (\S+) norm (\S+)$", output, re.M)
    assert [int(n) for n, _, _ in steps] == list(range(STEPS)), output
    return [(float(loss), float(norm)) for _, loss, norm in steps]


def main():
    program, meshes = sys.argv[1], sys.argv[2:]
    expected = run(program, [])
    assert expected[-1][0] < expected[0][0] - 0.05, f"does not learn: {expected}"
    for mesh in meshes:
        steps = run(program, [mesh])
        for i, ((loss, norm), (loss_1, norm_1)) in enumerate(zip(steps, expected)):
            print(f"{mesh} step {i}: loss {loss} {loss - loss_1:+.1e}, "
                  f"norm {norm} {norm - norm_1:+.1e}")
            assert abs(loss - loss_1) < LOSS, f"one rank: {loss_1}"
            assert abs(norm - norm_1) < NORM * norm_1, f"one rank: {norm_1}"
        verified = subprocess.run([program, "verify=" + mesh], text=True,
                                  capture_output=True)
        assert verified.returncode == 0, verified
        assert verified.stdout.startswith("verified: "), verified
        print(verified.stdout)
    wrong = subprocess.run([program, "pp:2"], text=True, capture_output=True)
    assert wrong.returncode == 1 and 'pp:2: unknown axis "pp"; there are ' in wrong.stderr, wrong


main()
