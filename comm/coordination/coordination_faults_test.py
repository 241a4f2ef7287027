#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and ends processes of a job, and checks the others' messages.

usage: coordination_faults_test.py PROGRAM
where PROGRAM is //comm/coordination:rank_process.
"""

import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../../testing"))
from held_port import bind, hold_port  # noqa: E402

PROGRAM = sys.argv.pop(1)
# Generous for a busy machine: what is measured is long, and timeouts of failed cases are much
# longer.
HEARTBEAT = 1.5
LEAVE = 1.0
LONG = 60.0


class Job:
    def __init__(self, case, size, heartbeat=LONG, leave=LONG, faults=None):
        self.port = hold_port(case)
        self.ranks = [
            subprocess.Popen(
                [PROGRAM, str(rank), str(size), str(self.port),
                 str(int(heartbeat * 1000)), str(int(leave * 1000)),
                 *([faults[rank]] if rank in (faults or {}) else [])],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(size)]
        for process in self.ranks:
            process.stdout.readline()  # "started"

    def end(self):
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def printed(self, *ranks):
        """Returns what those ranks print until they end; all print the same."""
        texts = []
        for rank in ranks:
            _, text = self.ranks[rank].communicate(timeout=LONG)
            texts.append(text)
        assert len(set(texts)) == 1, texts
        return texts[0]


class CoordinationFaultsTest(unittest.TestCase):
    def job(self, *arguments, **keywords):
        job = Job(self, *arguments, **keywords)
        self.addCleanup(job.end)
        return job

    def check_loss(self, job, rank, text):
        """Checks that `rank` is named, and the activities of the others."""
        process = job.ranks[rank].pid
        self.assertIn(f"rank {rank}: process {process} on host ", text)
        for other in range(len(job.ranks)):
            if other != rank:
                self.assertIn(f"(process {job.ranks[other].pid} on host ", text)
                self.assertRegex(text, rf"rank {other} \(.*\): in step {other}")

    def check_port_is_free(self, job):
        with bind(job.port) as listening:
            listening.listen()

    def test_a_killed_rank_is_named_at_once(self):
        # The times are so long that only the broken connection can be the reason.
        job = self.job(4)
        job.ranks[2].kill()
        text = job.printed(0, 1, 3)
        self.check_loss(job, 2, text)
        self.assertIn("died: its connection ended without a goodbye", text)
        self.assertEqual([p.wait() for p in job.ranks], [1, 1, -9, 1])
        self.check_port_is_free(job)

    def test_a_rank_that_exits_or_aborts_is_named_at_once(self):
        for fault in "exit", "abort":
            with self.subTest(fault):
                job = self.job(3, faults={1: fault})
                text = job.printed(0, 2)
                self.assertRegex(text, "rank 1: process .* died: ")

    def test_a_stopped_rank_is_named_and_ends_once_it_resumes(self):
        job = self.job(3, heartbeat=HEARTBEAT)
        began = time.monotonic()
        job.ranks[1].send_signal(signal.SIGSTOP)
        text = job.printed(0, 2)
        took = time.monotonic() - began
        self.check_loss(job, 1, text)
        self.assertIn("does not answer: no sign of it for", text)
        self.assertGreater(took, HEARTBEAT / 2)
        job.ranks[1].send_signal(signal.SIGCONT)
        self.assertNotEqual(job.ranks[1].wait(timeout=LONG), 0)

    def test_a_killed_rank_0_is_named_at_once(self):
        job = self.job(3)
        job.ranks[0].kill()
        text = job.printed(1, 2)
        self.assertIn(f"rank 0: process {job.ranks[0].pid} on host ", text)
        self.assertIn("which coordinates the job, died", text)
        self.check_port_is_free(job)

    def test_a_stopped_rank_0_is_named(self):
        job = self.job(2, heartbeat=HEARTBEAT)
        job.ranks[0].send_signal(signal.SIGSTOP)
        text = job.printed(1)
        self.assertIn(f"rank 0: process {job.ranks[0].pid} on host ", text)
        self.assertIn("does not answer: no sign of it for", text)
        job.ranks[0].send_signal(signal.SIGCONT)
        text = job.printed(0)
        self.assertIn("rank 0: process ", text)
        self.assertRegex(text, "was stopped (for|or cut off)")
        self.assertIn("rank 1 ", text)

    def test_a_rank_killed_in_a_pause_of_all_is_named(self):
        job = self.job(3, heartbeat=HEARTBEAT)
        for process in job.ranks:
            process.send_signal(signal.SIGSTOP)
        time.sleep(2 * HEARTBEAT)
        job.ranks[1].kill()
        for process in job.ranks:
            process.send_signal(signal.SIGCONT)
        text = job.printed(0, 2)
        self.assertRegex(text, "rank 1: process .* died: ")
        self.assertNotIn("rank 0: process", text)

    def test_a_pause_of_rank_0_within_the_timeout_is_no_failure(self):
        job = self.job(3)
        job.ranks[0].send_signal(signal.SIGSTOP)
        time.sleep(HEARTBEAT)
        job.ranks[0].send_signal(signal.SIGCONT)
        job.ranks[2].kill()
        self.check_loss(job, 2, job.printed(0, 1))

    def test_an_error_reaches_all_ranks(self):
        job = self.job(3, faults={2: "error"})
        self.assertEqual(job.printed(0, 1, 2), "rank 2: bad\n")

    def test_a_rank_that_does_not_return_is_ended(self):
        job = self.job(3, leave=LEAVE, faults={1: "hang"})
        job.ranks[2].kill()
        self.check_loss(job, 2, job.printed(0))
        text = job.printed(1)
        self.assertIn("[rank 1] rank 1 did not come back "
                      "within 1s after the job failed", text)
        self.assertEqual(job.ranks[1].returncode, 1)

    def test_all_leave_together(self):
        job = self.job(3, faults={rank: "goodbye" for rank in range(3)})
        self.assertEqual(job.printed(0, 1, 2), "")
        self.assertEqual([p.returncode for p in job.ranks], [0, 0, 0])
        self.check_port_is_free(job)

    def test_a_finished_rank_may_not_end_before_all_have_finished(self):
        job = self.job(3, faults={1: "goodbye"})
        job.ranks[1].kill()
        text = job.printed(0, 2)
        self.assertRegex(text, "rank 1: process .* died: ")


if __name__ == "__main__":
    unittest.main()
