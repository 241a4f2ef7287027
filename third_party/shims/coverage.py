#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns gcov's JSON into one lcov file for `bazel coverage`.

Bazel calls it twice: for each test with --coverage_dir, a directory of
*.gcov.json.gz, and at the end with --reports_file, a list of lcov files.
"""

import argparse
import collections
import glob
import gzip
import json
import os
import re


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--coverage_dir")
    parser.add_argument("--reports_file")
    parser.add_argument("--output_file", required=True)
    parser.add_argument("--filter_sources", action="append", default=[])
    args, _ = parser.parse_known_args()

    hits = collections.defaultdict(lambda: collections.defaultdict(int))
    if args.coverage_dir:
        pattern = os.path.join(args.coverage_dir, "**", "*.gcov.json.gz")
        for path in glob.glob(pattern, recursive=True):
            with gzip.open(path, "rt") as stream:
                for source in json.load(stream)["files"]:
                    for line in source["lines"]:
                        number = line["line_number"]
                        hits[source["file"]][number] += line["count"]
    reports = []
    if args.reports_file and os.path.exists(args.reports_file):
        with open(args.reports_file) as stream:
            reports = stream.read().split()
    for report in reports:
        if not os.path.exists(report):
            continue
        source = None
        with open(report) as stream:
            for line in stream:
                if line.startswith("SF:"):
                    source = line[3:].strip()
                elif line.startswith("DA:") and source:
                    number, count = line[3:].split(",")[:2]
                    hits[source][int(number)] += int(count)

    dropped = [re.compile(pattern) for pattern in args.filter_sources]
    with open(args.output_file, "w") as out:
        for source in sorted(hits):
            if any(pattern.fullmatch(source) for pattern in dropped):
                continue
            lines = sorted(hits[source].items())
            out.write(f"SF:{source}\n")
            out.writelines(f"DA:{number},{count}\n" for number, count in lines)
            out.write(f"LH:{sum(count > 0 for _, count in lines)}\n")
            out.write(f"LF:{len(lines)}\nend_of_record\n")


if __name__ == "__main__":
    main()
