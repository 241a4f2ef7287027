#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the pages (*.md) agree with the code.

usage: pages_test.py TARGETS      (the output of a genquery: one label a line)

* A C++ block follows a line `<!-- code: FILE#NAME -->` and equals, except for
  indentation, the text of FILE between the lines [NAME] and [/NAME].
* A block after `<!-- lines: FILE... -->` consists of lines of those files.
* The texts in the first column of a table after `<!-- texts: FILE... -->` are
  in those files, except for values. Several such lines list all files.
* In sh blocks each line is a valid command: its targets, configurations,
  scripts, their arguments, flags and environment variables exist.
* In launch blocks, commands of launchers, the flags of train_lm exist.
* Labels and paths of files in `code` exist, and links lead to existing pages.
* docs/README.md lists each page.
"""

import os
import re
import sys
import textwrap

LABEL = re.compile(r"(?:@crosshatch)?(//[\w./-]*(?::[\w.+-]+)?)")
BAZEL_FLAGS = {"--//:gpus", "--local_test_jobs", "--test_output", "--test_tag_filters"}
KINDS = {"", "cpp", "sh", "starlark", "layout", "plan", "gradient",
         "error", "launch"}


def read(path):
    with open(path, encoding="utf-8") as stream:
        return stream.read()


class Page:
    def __init__(self, path):
        self.path = path
        self.fences = []  # (line number, kind, the line before, text)
        self.prose = []  # (line number, line)
        before, fence = "", None
        for number, line in enumerate(read(path).splitlines(), 1):
            if fence is not None:
                if line.strip() == "```":
                    self.fences.append((*fence[:3], "".join(fence[3])))
                    fence, before = None, ""
                else:
                    fence[3].append(line + "\n")
            elif line.startswith("```"):
                fence = (number, line[3:].strip(), before, [])
            else:
                self.prose.append((number, line))
                before = line
        assert fence is None, f"{path}: a block has no end"


class Checker:
    def __init__(self, targets):
        self.targets = set(targets)
        self.files = {t[2:].replace(":", "/").lstrip("/") for t in targets}
        self.errors = []

    def error(self, page, number, message):
        self.errors.append(f"{page.path}:{number}: {message}")

    def has_label(self, label):
        if label == "//...":
            return True
        label = re.sub(r"/\.\.\.$|:all$", "", label)
        package, _, name = label[2:].partition(":")
        name = name or os.path.basename(package)
        return f"//{package}:{name}" in self.targets

    def check_labels(self, page, number, text):
        for label in LABEL.findall(text):
            if not self.has_label(label):
                self.error(page, number, f"no target {label}")

    # Blocks.

    def region(self, reference):
        path, _, name = reference.partition("#")
        match = re.search(
            rf"^ *// \[{name}\]\n(.*?)^ *// \[/{name}\]\n", read(path), re.M | re.S)
        return match and textwrap.dedent(match.group(1))

    def check_code(self, page, number, before, text):
        match = re.fullmatch(r"<!-- code: (\S+) -->", before)
        if not match:
            self.error(page, number, "a block of C++ without <!-- code: ... -->")
        elif self.region(match.group(1)) != textwrap.dedent(text):
            self.error(page, number, f"is not what {match.group(1)} says")

    def check_lines(self, page, number, before, text):
        match = re.fullmatch(r"<!-- lines: (.+) -->", before)
        if not match:
            return
        known = {l.strip() for path in match.group(1).split() for l in
                 read(path).splitlines()}
        for offset, line in enumerate(text.splitlines(), 1):
            if line.strip() and line.strip() not in known:
                self.error(page, number + offset,
                           f"not a line of {match.group(1)}: {line.strip()}")

    # Commands.

    def check_command(self, page, number, line):
        words = line.split("#")[0].split()
        while words and re.match(r"[A-Z_]+=", words[0]):
            self.check_variable(page, number, words.pop(0))
        if not words:
            self.error(page, number, f"no command: {line}")
        elif words[0] in ("./bazelw", "bazel"):
            self.check_bazel(page, number, words[1:])
        elif words[0] == ".ci/run" and len(words) == 1:
            pass
        elif re.match(r"tools/\w+$", words[0]) and os.path.exists(words[0]):
            script = read(words[0])
            for word in words[1:]:
                if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", script):
                    self.error(page, number, f"{words[0]} knows no {word}")
        else:
            self.error(page, number, f"not a command that is checked: {line}")

    def check_variable(self, page, number, assignment):
        name = assignment.split("=")[0]
        scripts = ["bazelw", "tools/prepare", "tools/nightly", "tools/run_gpu_test"]
        if not any(re.search(rf"\b{name}\b", read(s)) for s in scripts):
            self.error(page, number, f"nothing reads {name}")

    def check_bazel(self, page, number, words):
        own = words[words.index("--") + 1:] if "--" in words else []
        bazel = words[:words.index("--")] if "--" in words else words
        if not bazel or bazel[0] not in ("build", "test", "run"):
            self.error(page, number, f"no such Bazel command: {bazel[:1]}")
        labels = [word for word in bazel[1:] if not word.startswith("-")]
        if not labels:
            self.error(page, number, "no target")
        for label in labels:
            match = LABEL.fullmatch(label)
            if not match or not self.has_label(match.group(1)):
                self.error(page, number, f"no target {label}")
        for flag in (word for word in bazel[1:] if word.startswith("-")):
            config = re.fullmatch(r"--config=(\w+)", flag)
            variable = re.fullmatch(r"--test_env=(CROSSHATCH_\w+)=.*", flag)
            if config:
                flags = read(".bazelrc") + read("tools/sanitizers.bazelrc")
                if not re.search(rf"^build:{config.group(1)} ", flags, re.M):
                    self.error(page, number, f"no {flag} in .bazelrc")
            elif variable:
                self.check_variable(page, number, variable.group(1) + "=")
            elif flag.split("=")[0] not in BAZEL_FLAGS and flag != "--test_env=CUDA_VISIBLE_DEVICES":
                self.error(page, number, f"not a flag that is checked: {flag}")
        if labels in (["//benchmarks:training_benchmark"], ["//checkpoint:ckpt"],
                      ["//examples:gpt2"], ["//examples:moe"]):
            return  # programs_test runs them, and they refuse unknown flags.
        if own and labels != ["//examples:train_lm"]:
            self.error(page, number, f"flags of {labels} are not checked")
        self.check_flags(page, number, own)

    def check_flags(self, page, number, own):
        flags = []
        for source in "examples/train_options.cc", "launch/launch_flags.cc":
            flags += re.findall(r"ABSL_FLAG\([^,]+, (\w+),", read(source))
        assert len(flags) > 30, flags
        for flag in own:
            name = re.match(r"--(\w+)", flag)
            if not name or name.group(1) not in flags:
                self.error(page, number, f"train_lm has no {flag}")

    # Tables of texts.

    def check_texts(self, page):
        sources = None
        for number, line in page.prose:
            marker = re.fullmatch(r"<!-- texts: (.*) -->", line)
            if marker:
                # Joins adjacent literals and expressions between them.
                text = re.sub(r'"\s*\n\s*"', "",
                              "".join(map(read, marker.group(1).split())))
                sources = (sources or "") + text
            elif sources is None or not line.startswith("| `"):
                sources = sources if line.startswith("|") or not line else None
            else:
                for said in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                    self.check_text(page, number, said, sources)

    def check_text(self, page, number, said, sources):
        """Checks that runs of two or more words are in the sources; others are
        values."""
        words, at, values = said.split(), 0, 0
        while at < len(words):
            end = len(words)
            while end > at + 1 and " ".join(words[at:end]) not in sources:
                end -= 1
            values += end == at + 1 and not re.fullmatch(
                r"\d+\w*|[XY]|mpirun|.*\.\.\..*", words[at])
            at = end
        if values > 3 or 2 * values > len(words):
            self.error(page, number, f"no source says: {said}")

    # Prose.

    def check_prose(self, page, number, line):
        for code in re.findall(r"`([^`]+)`", line):
            if code.startswith(("//", "@crosshatch//")):
                self.check_labels(page, number, code)
            elif re.fullmatch(r"[\w./-]+\.(h|cc|bzl)", code):
                path = code.removeprefix("crosshatch/")
                if path not in self.files and not os.path.exists(path):
                    self.error(page, number, f"no file {code}")
            elif re.match(r"tools/", code) and not os.path.exists(code.split()[0]):
                self.error(page, number, f"no {code}")
            elif re.match(r"--config=", code):
                self.check_bazel(page, number, ["build", "//...", code])
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", line):
            if re.match(r"https?:", link):
                continue
            if not os.path.exists(os.path.join(os.path.dirname(page.path), link)):
                self.error(page, number, f"no page {link}")

    def check(self, page):
        for number, kind, before, text in page.fences:
            if kind not in KINDS:
                self.error(page, number, f"a block of unknown kind {kind}")
            if kind == "cpp":
                self.check_code(page, number, before, text)
            if kind == "sh":
                for offset, line in enumerate(text.splitlines(), 1):
                    self.check_command(page, number + offset, line)
            if kind == "launch":
                for offset, line in enumerate(text.splitlines(), 1):
                    words = line.split()
                    if "train_lm" in words:
                        self.check_flags(page, number + offset,
                                         words[words.index("train_lm") + 1:])
            self.check_lines(page, number, before, text)
        self.check_texts(page)
        for number, line in page.prose:
            self.check_prose(page, number, line)


def main():
    checker = Checker(read(sys.argv[1]).split())
    pages = sorted(name for name in os.listdir("docs") if name.endswith(".md"))
    index = read("docs/README.md")
    for name in pages:
        if name != "README.md" and f"]({name})" not in index:
            checker.errors.append(f"docs/README.md does not list {name}")
        checker.check(Page("docs/" + name))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        checker.check(Page(name))
    print("\n".join(checker.errors))
    return 1 if checker.errors else 0


if __name__ == "__main__":
    sys.exit(main())
