#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the pages.

usage: programs_test.py PROGRAM...      (the programs' paths, as //pkg:name
builds)

Runs each line `./bazelw run //pkg:name -- ARGUMENTS` of an sh block once, with
Bazel's binary. (pages_test checks other lines.) A program that is not in this
test's data is a failure. A training run of the default length takes 20 steps,
or all with CROSSHATCH_PROGRAMS=whole.
"""

import glob
import os
import re
import shlex
import subprocess
import sys
import time

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 600
TRAINS = "examples/train_lm"
SHORT = [] if os.environ.get("CROSSHATCH_PROGRAMS") == "whole" else ["--steps=20"]


def commands():
    """Returns the distinct lines in order, with the first page of each."""
    found = {}
    for page in sorted(glob.glob("*.md") + glob.glob("docs/*.md")):
        with open(page, encoding="utf-8") as stream:
            text = stream.read()
        for block in BLOCK.findall(text):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\w+=\S+ )*\./bazelw run ", line):
                    found.setdefault(line, page)
    return found


def run(line, programs):
    """Returns (exit status, output) of a line."""
    words = shlex.split(line, comments=True)
    environment = dict(os.environ, BUILD_WORKING_DIRECTORY=os.environ["TEST_TMPDIR"])
    while words[0] != "./bazelw":
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    label, arguments = words[2], words[3:]
    if arguments[:1] not in ([], ["--"]):
        return 1, f"flags of Bazel's own are not understood here: {arguments[0]}"
    package, _, name = label[len("//"):].partition(":")
    program = f"{package}/{name or os.path.basename(package)}"
    if program not in programs:
        return 1, f"add {label} to the data of //docs:programs_test"
    arguments = arguments[1:]
    if program == TRAINS and not any(a.startswith("--steps=") for a in arguments):
        arguments += SHORT
    try:
        done = subprocess.run(
            [os.path.abspath(program), *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        return 1, output + f"\nnot finished after {SECONDS} s"
    return done.returncode, done.stdout


def main():
    programs = set(sys.argv[1:])
    # Files that commands read in the user's workspace, and the build of another commit for
    # comparison.
    for name, target in ("checkpoint", "checkpoint"), ("train_lm_before", TRAINS):
        os.symlink(os.path.abspath(target),
                   os.path.join(os.environ["TEST_TMPDIR"], name))
    lines = commands()
    assert lines, "the pages name no program"
    failed = 0
    for line, page in lines.items():
        start = time.monotonic()
        status, output = run(line, programs)
        outcome = "ok" if status == 0 else f"exit {status}"
        print(f"{page}: {line}: {outcome} ({time.monotonic() - start:.0f} s)", flush=True)
        if status != 0:
            print(output[-4000:])
            failed += 1
    print(f"{len(lines)} documented commands, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
