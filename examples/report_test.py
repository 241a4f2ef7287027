#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of train_lm --report: it is complete at any time, a resumed run
continues it, and it does not affect the training.

usage: report_test.py PROGRAM
"""

import html.parser
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from train_lm_testcase import PROGRAM, SMALL, TIMES, TrainLmTestCase

EMPTY = {"rect", "line", "circle", "polyline", "polygon"}
NODE = shutil.which("node")
if NODE is None:
    print("NOT CHECKED: what pages draw; there is no node, which tools/prepare "
          "browser installs", file=sys.stderr)


class Page:
    """The data of a page, and what its script draws from them."""

    def __init__(self, text):
        if not text.endswith("</html>\n"):
            raise AssertionError("the page is incomplete")
        self.html = text
        self.points = self.data("points")["points"]
        self.run = self.data("run")

    def data(self, name):
        begin = f'<script type="application/json" id="{name}">'
        return json.loads(self.html.split(begin)[1].split("</script>")[0])

    def drawn(self):
        """Returns the drawn content; None without a program that draws it."""
        if NODE is None:
            return None
        script = self.html.split("<script>")[1].split("</script>")[0]
        done = subprocess.run(
            [NODE, "-e", script + "process.stdout.write(content(...JSON.parse("
             "require('fs').readFileSync(0))).text)"],
            input=json.dumps([self.data("points"), self.run]),
            capture_output=True, text=True, check=True)
        return Drawn(done.stdout)


class Drawn(html.parser.HTMLParser):
    """Headings, text and counts of tags."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = {}, [], []
        self.headings = []
        self.feed(text)
        self.close()
        if self.open:
            raise AssertionError(f"not closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in EMPTY:
            return
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> ends nothing")

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        self.text.append(data)

    def contains(self, text):
        return text in " ".join(self.text)


class ReportTest(TrainLmTestCase):
    def page(self, *flags):
        path = self.path("run.html")
        lines = self.metrics("--report=" + path, *flags)
        with open(path) as file:
            return Page(file.read()), lines

    def test_shows_what_the_metrics_say(self):
        page, lines = self.page("--mesh=fsdp:2,tp:2", "--eval_text=" + self.text)
        self.assertEqual([point[0] for point in page.points], [1, 2, 3])
        self.assertEqual([point[2] for point in page.points],
                         [line["loss"] for line in lines])
        self.assertEqual(page.run["mesh"], "mesh(fsdp=2, tp=2)")
        self.assertEqual(page.run["state"], "ended")
        self.assertEqual(page.run["last"]["moved"], lines[-1]["moved"])
        drawn = page.drawn()
        if drawn is None:
            return
        for heading in ["Loss", "Gradient norm, before clipping", "Tokens per second",
                        "Learning rate", "Memory by class of step 3, rank 0",
                        "Received per step, by axis and collective",
                        "Shardings of the parameters", "Timeline of step 3, rank 0",
                        "Time of step 3, rank 0", "The run"]:
            self.assertIn(heading, drawn.headings)
        for axis, kinds in lines[-1]["moved"].items():
            for kind in kinds:
                self.assertTrue(drawn.contains(kind), kind)
        for text in ["mesh(fsdp=2, tp=2)", "ended", "layers.*.mlp.up_proj.weight",
                     "fsdp 1 tp 1", "op matmul", "collective all_gather fsdp",
                     "wait unshard", "optimizer", "rest"]:
            self.assertTrue(drawn.contains(text), text)
        # A picture for each kind of parameters on each rank, and the charts.
        self.assertEqual(drawn.tags["svg"], len(page.run["kinds"]) * 4 + 6)

    def test_changes_no_bit(self):
        for flags in [["--mesh=fsdp:2,tp:2"], ["--recompute", "--accumulate=2"]]:
            page = "--report=" + self.path("bits.html")
            self.assertEqual(
                self.metrics(*flags, page, "--report_every=1", without=TIMES),
                self.metrics(*flags, without=TIMES))

    def test_of_a_dry_run_has_what_needs_no_values(self):
        page, lines = self.page("--engine=fake", "--mesh=fsdp:64,tp:4")
        self.assertEqual([point[2] for point in page.points], [None] * 3)
        drawn = page.drawn()
        if drawn is None:
            return
        self.assertIn("Shardings of the parameters", drawn.headings)
        self.assertIn("Memory by class of step 3, rank 0", drawn.headings)
        self.assertNotIn("Loss", drawn.headings)
        self.assertNotIn("Timeline of step 3, rank 0", drawn.headings)
        self.assertTrue(drawn.contains("The first 16 of 256 ranks."))

    def test_goes_on_where_the_run_goes_on(self):
        path, kept = self.path("run.html"), self.path("kept")
        flags = ["--text=" + self.text, *SMALL, "--report=" + path,
                 "--checkpoints=" + kept, "--save_every=2"]
        self.assertEqual(self.run_program(*flags).returncode, 0)
        with open(path) as file:
            before = Page(file.read()).points
        run = self.run_program(*flags, "--resume", "--steps=6", "--mesh=tp:2")
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(path) as file:
            page = Page(file.read())
        self.assertEqual([point[0] for point in page.points], [1, 2, 3, 4, 5, 6])
        self.assertEqual(page.points[:3], before)

    def test_is_whole_at_any_time_and_says_how_the_run_ended(self):
        path = self.path("run.html")
        run = subprocess.Popen(
            [PROGRAM, "--text=" + self.text, *SMALL, "--steps=1000000",
             "--report=" + path, "--report_every=1", "--mesh=fsdp:2"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.kill)
        seen, until = set(), time.time() + 100
        while len(seen) < 20 and time.time() < until and run.poll() is None:
            if os.path.exists(path):
                with open(path) as file:
                    page = Page(file.read())
                self.assertEqual(page.run["state"], "runs")
                seen.add(len(page.points))
        self.assertGreaterEqual(len(seen), 20)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
        with open(path) as file:
            page = Page(file.read())
        self.assertEqual(page.run["state"], "stopped")
        self.assertGreaterEqual(len(page.points), max(seen))
        self.assertEqual(os.listdir(self.dir).count("run.html.saving"), 0)

    def test_a_run_that_fails_says_so(self):
        path = self.path("run.html")
        run = self.run_program("--text=" + self.text, *SMALL, "--steps=200",
                               "--lr=1e30", "--report=" + path)
        self.assertEqual(run.returncode, 1)
        with open(path) as file:
            self.assertEqual(Page(file.read()).run["state"], "failed")

    def test_a_page_that_cannot_be_written_ends_no_training(self):
        # The first page fits, and no other file is as large.
        path = self.path("run.html")
        metrics = self.path("metrics")
        run = self.run_program("--text=" + self.text, *SMALL, "--report=" + path,
                               "--metrics=" + metrics, limit=4096)
        self.assertEqual(run.returncode, 1)
        self.assertIn("--report", run.stderr)
        with open(metrics) as file:
            self.assertEqual(len(file.readlines()), 3)
        self.assertFalse(os.path.exists(path))

    def test_a_page_that_cannot_take_its_place_leaves_none_beside(self):
        # A directory replaces it while unread metrics block the run.
        path, fifo = self.path("run.html"), self.path("fifo")
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        run = subprocess.Popen(
            [PROGRAM, "--text=" + self.text, *SMALL, "--steps=400",
             "--report=" + path, "--report_every=100", "--metrics=" + fifo],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.kill)
        while not os.path.exists(path):
            self.assertIsNone(run.poll())
            time.sleep(0.01)
        os.remove(path)
        os.makedirs(path + "/mine")
        os.set_blocking(reader, True)
        with os.fdopen(reader, "rb") as metrics:
            self.assertEqual(len(metrics.read().splitlines()), 400)
        _, errors = run.communicate(timeout=120)
        self.assertEqual(run.returncode, 1, errors)
        self.assertIn("--report: cannot rename the new file to", errors)
        self.assertEqual(sorted(os.listdir(self.dir)),
                         ["fifo", "run.html", "text"])

    def test_nothing_left_to_train_leaves_the_page(self):
        path, kept = self.path("run.html"), self.path("kept")
        flags = ["--text=" + self.text, *SMALL, "--report=" + path,
                 "--checkpoints=" + kept]
        self.assertEqual(self.run_program(*flags).returncode, 0)
        with open(path) as file:
            before = file.read()
        run = self.run_program(*flags, "--resume")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("no steps are left to train", run.stdout)
        with open(path) as file:
            self.assertEqual(file.read(), before)

    def test_refuses_what_would_harm_other_files(self):
        notes = self.path("notes.html")
        with open(notes, "w") as file:
            file.write("mine")
        metrics = self.path("one")
        for flags, says in [
                (["--report=" + notes], "is not overwritten"),
                (["--report=" + self.text], "which is only read"),
                (["--report=" + self.dir], "is not a file"),
                (["--report=" + self.path("none/run.html")], "cannot write to"),
                (["--report=" + metrics, "--metrics=" + metrics], "name two files"),
                (["--report="], "--report= is empty"),
                (["--report=/proc/x"], "cannot create"),
                (["--report=" + self.path("a" * 250)], "File name too long"),
                (["--report_every=2"], "--report_every needs --report"),
                (["--report=" + self.path("r"), "--report_every=-1"],
                 "--report_every=-1: must be at least 0")]:
            run = self.run_program("--text=" + self.text, *SMALL, *flags)
            self.assertEqual(run.returncode, 1, flags)
            self.assertIn(says, run.stderr)
        with open(notes) as file:
            self.assertEqual(file.read(), "mine")


if __name__ == "__main__":
    unittest.main()
