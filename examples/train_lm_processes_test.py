#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_lm as processes: the results equal those of rank threads. Checks the
messages when processes are lost, stopped or started wrongly.

usage: train_lm_processes_test.py PROGRAM
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(os.path.join(sys.path[0], "../testing"))
import beside  # noqa: E402
from held_port import bind, hold_port  # noqa: E402
from mpi_place import environment_in, make_place  # noqa: E402
from own_lines import own_lines  # noqa: E402

PROGRAM = sys.argv.pop(1)
NAME = os.path.basename(PROGRAM)
SMALL = ["--dim=32", "--layers=2", "--heads=4", "--ffn=50", "--global_batch=5",
         "--seq_len=17", "--mesh=fsdp:2,tp:2"]
LONG = 60
TIMEOUT = 5


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        self.dir = make_place(self)
        self.addCleanup(self.check_files)
        self.text = os.path.join(self.dir, "text")
        with open(self.text, "w") as file:
            file.write("A small text to learn, which goes on and on. " * 20)
        self.environment = environment_in(self.dir)
        self.shape = SMALL

    def check_files(self):
        left = [name for name in os.listdir(self.dir)
                if name.startswith(("crosshatch-", "ompi."))
                and any(files for _, _, files
                        in os.walk(os.path.join(self.dir, name)))]
        self.assertEqual(left, [])

    def popen(self, command, **variables):
        process = subprocess.Popen(
            [*command, PROGRAM, "--text=" + self.text, *self.shape, *self.flags],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def mpirun(self, *flags, ranks=4, options=()):
        self.flags = flags
        return self.popen(["mpirun", "--oversubscribe", "-np", str(ranks),
                           *options])

    def plain(self, *flags, ranks=4, of_last=()):
        """\param of_last: additional flags of the last rank."""
        port = hold_port(self)
        processes = []
        for rank in range(ranks):
            self.flags = [*flags, *(of_last if rank == ranks - 1 else ())]
            processes.append(
                self.popen([], RANK=str(rank), WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)))
        return processes

    def await_steps(self, rank_0):
        while True:
            line = rank_0.stdout.readline()
            if "step 1/" in line:
                return
            self.assertNotEqual(line, "", "it ended early")

    def metrics(self, path):
        with open(path) as file:
            lines = [json.loads(line) for line in file]
        for line in lines:
            for key in "tokens_per_s", "step_ms", "peak_bytes", "copied_bytes":
                del line[key]
        return lines

    def test_metrics_are_those_of_rank_threads(self):
        paths = [os.path.join(self.dir, how) for how in ("l", "m", "p")]
        self.flags = ["--steps=3", "--metrics=" + paths[0]]
        self.assertEqual(self.popen([]).wait(timeout=LONG), 0)
        run = self.mpirun("--steps=3", "--metrics=" + paths[1])
        out, error = run.communicate(timeout=LONG)
        self.assertEqual((run.returncode, own_lines(error, NAME)), (0, []))
        self.assertEqual(out.count("trained 3 steps"), 1)
        for process in self.plain("--steps=3", "--metrics=" + paths[2]):
            _, error = process.communicate(timeout=LONG)
            self.assertEqual((process.returncode, own_lines(error, NAME)),
                             (0, []))
        local, by_mpirun, by_variables = map(self.metrics, paths)
        self.assertEqual(len(local), 3)
        self.assertEqual(local, by_mpirun)
        self.assertEqual(local, by_variables)

    def test_a_run_goes_on_on_either_engine(self):
        def path(name):
            return os.path.join(self.dir, name)

        def local(*flags):
            self.flags = flags
            return self.popen([])

        def run(start, name, *flags):
            process = start("--metrics=" + path(name), "--resume",
                            "--checkpoints=" + path(name + ".run"), *flags)
            _, error = process.communicate(timeout=LONG)
            self.assertEqual((process.returncode, own_lines(error, NAME)),
                             (0, []))
        run(local, "whole", "--steps=4")
        for name, first, second in [("lm", local, self.mpirun),
                                    ("ml", self.mpirun, local),
                                    ("mm", self.mpirun, self.mpirun)]:
            with self.subTest(order=name):
                run(first, name, "--steps=2")
                run(second, name, "--steps=4")
                self.assertEqual(self.metrics(path(name)),
                                 self.metrics(path("whole")))

    def test_torchrun_leaves_its_port_to_itself(self):
        # Looks like torchrun's agent to a rank.
        port = hold_port(self, count=2)
        with bind(port) as agent:
            agent.listen()
            self.flags = ["--steps=2", "--mesh=fsdp:2"]
            ranks = [self.popen([], RANK=str(rank), WORLD_SIZE="2",
                                LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                TORCHELASTIC_RUN_ID="none",
                                TORCHELASTIC_RESTART_COUNT="0")
                     for rank in range(2)]
            for rank in ranks:
                _, error = rank.communicate(timeout=LONG)
                self.assertEqual((rank.returncode, own_lines(error, NAME)),
                                 (0, []))

    def test_ranks_that_read_another_model_end(self):
        first = os.path.join(self.dir, "first")
        self.flags = ["--steps=1", "--mesh=fsdp:1", "--save=" + first]
        self.assertEqual(self.popen([]).wait(timeout=LONG), 0)
        self.shape = ["--global_batch=2", "--seq_len=17", "--mesh=fsdp:2"]
        for name in "model.safetensors", "config.json":
            with self.subTest(file=name):
                other = os.path.join(self.dir, "other")
                shutil.rmtree(other, ignore_errors=True)
                shutil.copytree(first, other)
                with open(os.path.join(other, name), "r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    last = file.read(1)
                    file.seek(-1, os.SEEK_END)
                    file.write(bytes([last[0] ^ 1]) if name != "config.json"
                               else last + b" ")
                ranks = self.plain("--steps=1", "--model=" + first, ranks=2,
                                   of_last=["--model=" + other])
                said = "".join(p.communicate(timeout=LONG)[1] for p in ranks)
                self.assertEqual([p.returncode for p in ranks], [1, 1], said)
                own = own_lines(said, NAME)
                self.assertEqual(len(own), 1, said)
                self.assertIn("ranks 0 and 1 read different inputs: ", own[0])
                self.assertIn(name + " (hash ", own[0])

    def lose(self, victim, fault):
        """Checks the output of all when a rank is lost, and that they exit in time."""
        ranks = self.plain("--steps=1000000", f"--timeout={TIMEOUT}s")
        self.await_steps(ranks[0])
        began = time.monotonic()
        ranks[victim].send_signal(fault)
        said = ""
        for number, process in enumerate(ranks):
            if number != victim:
                said += process.communicate(timeout=LONG)[1]
                self.assertEqual(process.returncode, 1)
        self.assertLess(time.monotonic() - began, 2 * TIMEOUT)
        return [line for line in said.splitlines() if "train_lm: " in line]

    def test_a_lost_rank_is_one_error(self):
        for victim, fault in (2, signal.SIGKILL), (3, signal.SIGSTOP):
            with self.subTest(fault=fault):
                said = self.lose(victim, fault)
                self.assertEqual(len(said), 1, said)
                self.assertRegex(said[0], f"^train_lm: rank {victim}: process")

    def test_a_lost_rank_0_is_reported_once_per_host(self):
        for fault in signal.SIGKILL, signal.SIGSTOP:
            with self.subTest(fault=fault):
                said = self.lose(0, fault)
                self.assertEqual(len(said), 1, said)
                # All detect a killed process at once, and the lowest rank
                # reports it.
                rank = "1" if fault == signal.SIGKILL else "[123]"
                self.assertRegex(said[0],
                                 rf"^\[rank {rank}\] train_lm: rank 0: process")

    def test_a_signal_to_one_ends_all_after_the_same_step(self):
        saved = os.path.join(self.dir, "saved")
        checkpoints = os.path.join(self.dir, "run")
        for flags, status in [(["--save=" + saved], 143),
                              (["--checkpoints=" + checkpoints], 0)]:
            with self.subTest(flags=flags):
                ranks = self.plain("--steps=1000000", *flags)
                self.await_steps(ranks[0])
                ranks[2].send_signal(signal.SIGTERM)
                out, _ = ranks[0].communicate(timeout=LONG)
                step = out.split("note: stopped by a signal after step ")[1]
                for process in ranks:
                    process.communicate(timeout=LONG)
                    self.assertEqual(process.returncode, status)
        self.assertTrue(os.path.exists(saved + "/config.json"))
        self.assertEqual(os.listdir(checkpoints),
                         [f"step-{int(step.split()[0]):06d}"])

    def test_options_that_differ_are_one_line(self):
        of_last = os.path.join(self.dir, "of_last")
        for flag, differs in [
                ("--lr=0.1", "--lr=0.1, and rank 0 with --lr=0.002"),
                ("--mesh=tp:2", "--mesh=tp:2, and rank 0 with --mesh=fsdp:2"),
                ("--save=" + of_last, "a --save, and rank 0 with no --save"),
                # Only those of rank 0 count.
                ("--metrics=" + of_last, None)]:
            with self.subTest(flag=flag):
                ranks = self.plain("--steps=1", "--mesh=fsdp:2", ranks=2,
                                   of_last=[flag])
                said = "".join(p.communicate(timeout=LONG)[1] for p in ranks)
                self.assertEqual([p.returncode for p in ranks],
                                 [0, 0] if differs is None else [1, 1], said)
                self.assertEqual(own_lines(said, NAME), [] if differs is None else [
                    f"train_lm: rank 1: it runs with {differs}: "
                    "start all ranks with the same"])
        self.assertFalse(os.path.exists(of_last))

    def test_another_number_of_processes_is_one_line(self):
        run = self.mpirun("--steps=1", ranks=2)
        _, error = run.communicate(timeout=LONG)
        self.assertNotEqual(run.returncode, 0)
        said = [line for line in error.splitlines() if "train_lm: " in line]
        self.assertEqual(len(said), 1, error)
        self.assertIn("--mesh=fsdp:2,tp:2 needs 4 ranks, and mpirun started 2 "
                      "processes: start 4", said[0])


if __name__ == "__main__":
    # They train, so a lost process must be detected in time.
    beside.main(at_once=2)
