#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders train_lm's --report in a browser: everything is drawn, in light and
dark, in a wide and a narrow window.

usage: report_browser_test.py PROGRAM
Needs a Chromium (`tools/prepare browser` installs a small one). Without any it
prints that and checks nothing. Pictures go to $TEST_UNDECLARED_OUTPUTS_DIR.
"""

import collections
import itertools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from train_lm_testcase import TrainLmTestCase

BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser",
            "google-chrome"]
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
if BROWSER is None:
    print("NOT CHECKED: there is no browser; tools/prepare browser installs one",
          file=sys.stderr)
    sys.exit(0)

# As in page/page.html: the background, and the colors of lines, memory and
# spans.
GROUND = {"light": (0xf7, 0xf7, 0xf5), "dark": (0x14, 0x17, 0x1c)}
COLORS = {
    "light": ["3b74c9", "d97a1f", "3a9a63", "c6486b", "8360c3", "1f9ba5"],
    "dark": ["6ba1f0", "f0a050", "5fc48b", "ee7f9d", "ab8cf0", "4fc9d3"]}


def read_png(path):
    """Returns (width, height, rows of bytes RGB...) of an 8-bit RGB or RGBA PNG."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", path
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    assert depth == 8 and color in (2, 6), (depth, color)
    step = 3 if color == 2 else 4
    raw, rows = zlib.decompress(packed), []
    before = bytearray(width * step)
    for y in range(height):
        begin = y * (width * step + 1)
        kind, row = raw[begin], bytearray(raw[begin + 1:begin + 1 + width * step])
        # Most rows are of one color or repeat the previous row. Python loops
        # process only the others, because there are millions of bytes.
        if kind == 1:
            for color in range(step):
                sums = itertools.accumulate(row[color::step])
                row[color::step] = bytes(value & 255 for value in sums)
        elif kind == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, before)) \
                if any(row) else before
        for i in range(len(row) if kind > 2 else 0):
            left = row[i - step] if i >= step else 0
            up, corner = before[i], before[i - step] if i >= step else 0
            if kind == 3:
                guess = (left + up) // 2
            else:
                near = left + up - corner
                guess = min((abs(near - left), 0, left), (abs(near - up), 1, up),
                            (abs(near - corner), 2, corner))[2]
            row[i] = (row[i] + guess) & 255
        rows.append(row)
        before = row
    return width, height, step, rows


class ReportBrowserTest(TrainLmTestCase):
    def picture(self, page, scheme, width, height):
        pictures = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", self.dir)
        path = os.path.join(pictures, f"{scheme}-{width}.png")
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--user-data-dir=" + tempfile.mkdtemp(dir=self.dir),
             f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
             f"--window-size={width},{height}", "--screenshot=" + path,
             "file://" + page], capture_output=True, text=True, timeout=200,
            env={**os.environ, "HOME": self.dir})
        self.assertTrue(os.path.exists(path), done.stdout + done.stderr)
        return read_png(path)

    def test_is_drawn(self):
        page = self.path("run.html")
        self.metrics("--mesh=fsdp:2,tp:2", "--report=" + page,
                     "--eval_text=" + self.text, "--eval_every=1")
        for scheme in "light", "dark":
            for width, height in (1280, 2200), (420, 3600):
                with self.subTest(scheme=scheme, width=width):
                    got, _, step, rows = self.picture(page, scheme, width, height)
                    self.assertEqual(got, width)
                    count = collections.Counter()
                    for row, times in collections.Counter(map(bytes, rows)).items():
                        pixels = zip(*(row[c::step] for c in range(3)))
                        for color, number in collections.Counter(pixels).items():
                            count[color] += times * number
                    ground = GROUND[scheme]
                    self.assertGreater(count[ground], 0.02 * got * len(rows))
                    for color in COLORS[scheme]:
                        self.assertGreater(count[tuple(bytes.fromhex(color))], 60,
                                           color)
                    # Nothing exceeds the window.
                    for row in rows:
                        self.assertEqual(tuple(row[-step:][:3]), ground)


if __name__ == "__main__":
    unittest.main()
