#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of train_lm: rank threads, processes, and PyTorch's beside them.

    bazel run //benchmarks:training_benchmark -- [--dim=256 ...] [--python=PYTHON] [--ops]
    bazel run //benchmarks:training_benchmark -- --growth=1,2,4,8,16

A Llama on a mesh of --fsdp by --tp ranks. The ways take turns, so that what else
the machine does disturbs all alike; each line has the medians of a round over the
steps after the second, and their ratios. --python is an interpreter that has
PyTorch; without it the rank threads and the processes alone are compared. --ops
adds what a step of a rank spends, by op and collective, from train_lm's report.
--growth compares threads and processes on fsdp meshes of so many ranks.
"""

import argparse
import html
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

SIZES = {"dim": 256, "heads": 4, "ffn": 704, "layers": 4, "vocab": 512,
         "seq_len": 256, "global_batch": 8}


def fail(done):
    sys.exit(f"{' '.join(map(str, done.args))}\nended with {done.returncode}\n"
             + (done.stdout + done.stderr)[-2000:])


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        fail(done)
    return done.stdout


class Race:
    def __init__(self, args, scratch):
        self.args = args
        self.scratch = scratch
        self.text = os.path.join(scratch, "text")
        with open(self.text, "w", encoding="utf-8") as stream:
            stream.write("the quick brown fox jumps over the lazy dog. " * 4000)

    def train_lm(self, mesh, launcher=(), more=()):
        metrics = os.path.join(self.scratch, "metrics")
        if os.path.exists(metrics):
            os.remove(metrics)
        run([*launcher, self.args.train_lm, f"--text={self.text}", f"--mesh={mesh}",
             f"--steps={self.args.steps}", f"--metrics={metrics}",
             *(f"--{name}={getattr(self.args, name)}" for name in SIZES), *more])
        with open(metrics, encoding="utf-8") as stream:
            rates = [json.loads(line)["tokens_per_s"] for line in stream]
        return statistics.median(rates[2:])

    def threads(self, mesh):
        return self.train_lm(mesh)

    def processes(self, mesh, ranks):
        return self.train_lm(mesh, ("mpirun", "-np", str(ranks), "--oversubscribe",
                                    "--bind-to", "none"))

    def pytorch(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        peer = os.path.join(os.path.dirname(os.path.realpath(__file__)), "training_peer.py")
        output = run([self.args.python, peer, f"--fsdp={self.args.fsdp}", f"--tp={self.args.tp}",
                      f"--steps={self.args.steps}", f"--port={port}",
                      *(f"--{name}={getattr(self.args, name)}" for name in SIZES)])
        return statistics.median(map(float, output.split()))

    def ops(self, mesh):
        """The rows of the report's table: stream, what, times, ms, share."""
        page = os.path.join(self.scratch, "report.html")
        self.train_lm(mesh, more=(f"--report={page}",))
        with open(page, encoding="utf-8") as stream:
            tables = re.findall(r"<table.*?</table>", stream.read(), re.DOTALL)
        [table] = [table for table in tables if "of the step" in table]
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL):
            yield [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()
                   for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # Where Bazel puts it for a program that is run, and tests for this one.
    parser.add_argument("--train_lm", default="examples/train_lm")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--fsdp", type=int, default=2)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python")
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--growth", type=lambda text: [int(n) for n in text.split(",")])
    args = parser.parse_args()
    if args.steps < 3:
        parser.error(f"--steps={args.steps}: the first two do not count, so at least 3")
    return args


def main():
    args = parse()
    # As root, Open MPI wants to be told twice.
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    has_mpi = shutil.which("mpirun") is not None
    with tempfile.TemporaryDirectory() as scratch:
        race = Race(args, scratch)
        if args.growth:
            print("| ranks | threads | processes | of threads |\n|---|---|---|---|")
            for ranks in args.growth:
                threads = race.threads(f"fsdp:{ranks}")
                processes = race.processes(f"fsdp:{ranks}", ranks)
                print(f"| {ranks} | {threads:,.0f} | {processes:,.0f} | "
                      f"{processes / threads:.2f} |", flush=True)
            return
        mesh = f"fsdp:{args.fsdp},tp:{args.tp}"
        for _ in range(args.rounds):
            threads = race.threads(mesh)
            line = f"{mesh} dim={args.dim}: threads {threads:,.0f}"
            if has_mpi:
                processes = race.processes(mesh, args.fsdp * args.tp)
                line += f", processes {processes:,.0f} ({processes / threads:.2f} of threads)"
            if args.python:
                pytorch = race.pytorch()
                line += f", PyTorch {pytorch:,.0f} (threads {threads / pytorch:.2f} times that)"
            print(line, flush=True)
        if args.ops:
            for row in race.ops(mesh):
                print("  ".join(row))


if __name__ == "__main__":
    main()
