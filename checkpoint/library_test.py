#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a checkpoint, model and optimizer, with Hugging Face's
library. The cells, joined as the index states, equal the whole tensors that
`ckpt convert` writes.

usage: library_test.py CKPT DIRECTORY
where CKPT is //checkpoint:ckpt and DIRECTORY a checkpoint. Needs the Python
packages safetensors and numpy. CROSSHATCH_PYTHON names an interpreter that has
them, if this one does not. Without any, prints that and checks nothing.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
    from safetensors import safe_open
except ImportError as missing:
    other = os.environ.pop("CROSSHATCH_PYTHON", None)
    if other:
        os.execv(other, [other, *sys.argv])
    print(f"NOT CHECKED: {missing}; CROSSHATCH_PYTHON may name a Python that has "
          "it", file=sys.stderr)
    sys.exit(0)

DIRECTORY = sys.argv.pop(2)
CKPT = sys.argv.pop(1)


def join(directory, index, name):
    """Returns the whole tensor, joined from its cells in `directory`."""
    tensor = index["tensors"][name]
    intervals = [list(zip(cuts, cuts[1:])) for cuts in tensor["cuts"]]
    boxes = list(itertools.product(*intervals))
    whole = numpy.full(tensor["shape"], numpy.nan, dtype=numpy.float32)
    for box, number in zip(boxes, tensor["files"], strict=True):
        is_all = len(boxes) == 1
        text = ", ".join(f"{begin}:{end}" for begin, end in box)
        cell = name if is_all else f"{name}[{text}]"
        path = os.path.join(directory, index["files"][number])
        with safe_open(path, framework="np") as file:
            whole[tuple(slice(*interval) for interval in box)] = \
                file.get_tensor(cell)
    return whole


class LibraryTest(unittest.TestCase):
    def test_cells_join_to_the_whole_tensors(self):
        with tempfile.TemporaryDirectory() as root:
            other = os.path.join(root, "other")
            subprocess.run([CKPT, "reshard", DIRECTORY, other, "--ranks=3"],
                           check=True)
            for part in ("model.", "optimizer."):
                whole = os.path.join(root, part + "whole")
                subprocess.run([CKPT, "convert", DIRECTORY, whole,
                                f"--prefix={part}", f"--new_prefix={part}"],
                               check=True)
                # As the ranks wrote them, and as another number of ranks would.
                for directory in (DIRECTORY, other):
                    self.compare(directory, part, whole)

    def compare(self, directory, part, whole):
        with open(os.path.join(directory, "checkpoint.json")) as file:
            index = json.load(file)
        names = [name for name in index["tensors"] if name.startswith(part)]
        self.assertTrue(names, part)
        with safe_open(os.path.join(whole, "model.safetensors"),
                       framework="np") as file:
            self.assertEqual(sorted(file.keys()), sorted(names))
            for name in names:
                expected = file.get_tensor(name)
                self.assertTrue(numpy.isfinite(expected).all(), name)
                numpy.testing.assert_array_equal(
                    join(directory, index, name), expected, name)


if __name__ == "__main__":
    unittest.main()
