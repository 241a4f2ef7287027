#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the example of the README: it must succeed, and its loss must fall.

usage: two_d_training_test.py PROGRAM
"""

import re
import subprocess
import sys

output = subprocess.run(
    [sys.argv[1]], check=True, capture_output=True, text=True).stdout
losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", output, re.M)]
assert len(losses) == 20, output
# A new model predicts 256 tokens as equally likely: log(256) = 5.55.
assert abs(losses[0] - 5.55) < 0.3, output
assert losses[-1] < losses[0] / 2, output
