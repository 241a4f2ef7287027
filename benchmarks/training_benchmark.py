#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tokens per second of train_lm on threads and processes, and of PyTorch.

    bazel run //benchmarks:training_benchmark -- [--dim=256 ...] [--python=PYTHON] [--ops]
    bazel run //benchmarks:training_benchmark -- --growth=1,2,4,8,16
    bazel run //benchmarks:training_benchmark -- --against=TRAIN_LM [--pairs=6]

Trains a Llama on a mesh of --fsdp by --tp ranks. The variants alternate, so that
other load affects all of them. Each line has a round's medians over the steps
after the second, and their ratios. --python is an interpreter that has PyTorch;
without it only threads and processes are compared. --ops adds rank 0's times of
the last step by op and collective, from train_lm's report, and the parts in which
processes compare fingerprints and pack data.
--growth compares threads and processes on fsdp meshes of the given sizes, and
prints how each part of the processes' step grows.
--against compares rank threads of this build with those of another build of
train_lm, in pairs of runs whose order alternates. It prints the ratio of each pair
and the median of all pairs.
"""

import argparse
import collections
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

    def train_lm(self, mesh, launcher=(), report=False, program=None):
        """Returns tokens per second and, with `report`, the times of a step."""
        metrics = os.path.join(self.scratch, "metrics")
        if os.path.exists(metrics):
            os.remove(metrics)
        page = os.path.join(self.scratch, "report.html")
        run([*launcher, program or self.args.train_lm, f"--text={self.text}",
             f"--mesh={mesh}",
             f"--steps={self.args.steps}", f"--metrics={metrics}",
             *(f"--{name}={getattr(self.args, name)}" for name in SIZES),
             *([f"--report={page}"] if report else [])])
        with open(metrics, encoding="utf-8") as stream:
            rates = [json.loads(line)["tokens_per_s"] for line in stream]
        return statistics.median(rates[2:]), Spent(page) if report else None

    def threads(self, mesh, report=False):
        return self.train_lm(mesh, report=report)

    def processes(self, mesh, ranks, report=False):
        return self.train_lm(mesh, ("mpirun", "-np", str(ranks), "--oversubscribe",
                                    "--bind-to", "none"), report)

    def pytorch(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        peer = os.path.join(os.path.dirname(os.path.realpath(__file__)), "training_peer.py")
        output = run([self.args.python, peer, f"--fsdp={self.args.fsdp}", f"--tp={self.args.tp}",
                      f"--steps={self.args.steps}", f"--port={port}",
                      *(f"--{name}={getattr(self.args, name)}" for name in SIZES)])
        return statistics.median(map(float, output.split()))


class Spent:
    """Returns the times of a step of rank 0: calls and ms by stream and kind."""

    def __init__(self, page):
        with open(page, encoding="utf-8") as stream:
            [run] = re.findall(r'<script type="application/json" id="run">(.*?)</script>',
                               stream.read(), re.DOTALL)
        trace = json.loads(run)["trace"]
        self.step_ms = trace["us"] / 1e3
        self.work = collections.defaultdict(lambda: (0, 0.0))
        self.add("compute", "rest", 1, self.step_ms)
        around = collections.defaultdict(list)  # By stream: the spans that have begun.
        for span in sorted(trace["spans"], key=lambda span: (span["begin"], -span["end"])):
            stream, what = span["row"], span["what"]
            if what in ("op", "collective", "wait"):
                what += f" {span['subject']}"
            open_spans = around[stream]
            while open_spans and open_spans[-1][0] <= span["begin"]:
                open_spans.pop()
            ms = (span["end"] - span["begin"]) / 1e3
            if open_spans:
                self.add(stream, open_spans[-1][1], 0, -ms)
            elif stream == "compute":
                self.add(stream, "rest", 0, -ms)
            self.add(stream, what, 1, ms)
            open_spans.append((span["end"], what))

    def add(self, stream, what, calls, ms):
        before = self.work[stream, what]
        self.work[stream, what] = (before[0] + calls, before[1] + ms)

    def of_engine(self):
        """Returns the times of the process engine other than moving data."""
        lines = []
        # Each process sends a fingerprint and then compares those of the
        # others.
        for name, counted, spans in ("comparing", "collectives", 2), ("packing", "pieces", 1):
            found = [spent for (_, what), spent in self.work.items() if what == name]
            ms = sum(ms for _, ms in found)
            lines.append(f"{name}: {sum(calls for calls, _ in found) // spans} {counted}, "
                         f"{ms:.2f} ms of a step of {self.step_ms:.1f} ms: "
                         f"{100 * ms / self.step_ms:.2f} %")
        return "\n".join(lines)

    def parts(self):
        """Returns ms by part of the step; other streams overlap with compute."""
        parts = collections.defaultdict(float)
        for (stream, what), (_, ms) in self.work.items():
            if what in ("comparing", "packing"):
                parts[what] += ms
            elif what.startswith("collective "):
                beside = "" if stream == "compute" else ", beside computing"
                parts[what.removeprefix("collective ") + beside] += ms
            elif stream != "compute":
                parts[f"else on {stream}, beside computing"] += ms
            else:
                parts["waiting" if what.startswith("wait ") else "computing"] += ms
        return {"step": self.step_ms, **parts}


def print_table(head, rows):
    print("\n| " + " | ".join(map(str, head)) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def print_ops(threads, processes):
    ways = [threads] + ([processes] if processes else [])
    named = dict.fromkeys(key for way in ways for key in way.work)
    print_table(["stream", "what", "times", "ms, threads", "ms, processes"][:3 + len(ways)],
                [[*key, max(way.work.get(key, (0, 0))[0] for way in ways),
                  *(f"{way.work.get(key, (0, 0))[1]:.2f}" for way in ways)]
                 for key in sorted(named, key=lambda key: key[0] != "compute")])
    if processes:
        print("\n" + processes.of_engine())


def print_growth(race, sizes):
    rates, steps = [], []
    for ranks in sizes:
        threads, _ = race.threads(f"fsdp:{ranks}")
        processes, spent = race.processes(f"fsdp:{ranks}", ranks, report=True)
        rates.append([ranks, f"{threads:,.0f}", f"{processes:,.0f}",
                      f"{processes / threads:.2f}"])
        steps.append(spent.parts())
    print_table(["ranks", "threads", "processes", "of threads"], rates)
    names = dict.fromkeys(name for parts in steps for name in parts)
    print_table(["ms of a step of rank 0, by processes", *sizes],
                [[name, *(f"{parts.get(name, 0):.2f}" for parts in steps)] for name in names])


def print_against(race, mesh, pairs):
    ratios = []
    for pair in range(pairs):
        programs = [race.args.train_lm, race.args.against]
        rates = {program: race.train_lm(mesh, program=program)[0]
                 for program in (programs if pair % 2 == 0 else reversed(programs))}
        this, other = (rates[program] for program in programs)
        ratios.append(this / other)
        print(f"{mesh} dim={race.args.dim}: this {this:,.0f}, other {other:,.0f}, "
              f"ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # Where Bazel puts it for `bazel run`, and for a test.
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
    # Relative to the caller's directory.
    parser.add_argument("--against", type=lambda path: os.path.abspath(
        os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), path)))
    parser.add_argument("--pairs", type=int, default=6)
    args = parser.parse_args()
    if args.against and not os.access(args.against, os.X_OK):
        parser.error(f"--against={args.against}: no program; name a built train_lm")
    if args.steps < 3:
        parser.error(f"--steps={args.steps}: the first two do not count, so at least 3")
    return args


def main():
    args = parse()
    # Open MPI requires both variables to run as root.
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    has_mpi = shutil.which("mpirun") is not None
    with tempfile.TemporaryDirectory() as scratch:
        race = Race(args, scratch)
        if args.growth:
            print_growth(race, args.growth)
            return
        mesh = f"fsdp:{args.fsdp},tp:{args.tp}"
        if args.against:
            print_against(race, mesh, args.pairs)
            return
        for _ in range(args.rounds):
            threads, _ = race.threads(mesh)
            line = f"{mesh} dim={args.dim}: threads {threads:,.0f}"
            if has_mpi:
                processes, _ = race.processes(mesh, args.fsdp * args.tp)
                line += f", processes {processes:,.0f} ({processes / threads:.2f} of threads)"
            if args.python:
                pytorch = race.pytorch()
                line += f", PyTorch {pytorch:,.0f} (threads {threads / pytorch:.2f} times that)"
            print(line, flush=True)
        if args.ops:
            _, of_threads = race.threads(mesh, report=True)
            of_processes = None
            if has_mpi:
                _, of_processes = race.processes(mesh, args.fsdp * args.tp, report=True)
            print_ops(of_threads, of_processes)


if __name__ == "__main__":
    main()
