#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Triggers each kind of finding of tools/lint, and checks valid files."""

import importlib.machinery
import importlib.util
import os
import unittest

_loader = importlib.machinery.SourceFileLoader(
    "lint", os.path.join(os.path.dirname(os.path.abspath(__file__)), "lint"))
lint = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("lint", _loader))
_loader.exec_module(lint)

LICENSE = "SPDX-License-Identifier: Apache-2.0\n"
CC = "// " + LICENSE
BUILD = "# " + LICENSE
HEADER = CC + ("#ifndef CROSSHATCH_MESH_A_H_\n#define CROSSHATCH_MESH_A_H_\n"
               "{}\n#endif  // CROSSHATCH_MESH_A_H_\n")


class LintTest(unittest.TestCase):

    def check(self, wanted, path, text):
        """Checks that linting `text` as the file `path` finds `wanted` and
        nothing else."""
        found = lint.Findings()
        lint.check_file(path, text, found)
        said = found.errors + found.warnings
        if wanted is None:
            self.assertEqual(said, [])
        else:
            self.assertEqual(len(said), 1, said)
            self.assertIn(wanted, said[0])

    def test_every_file(self):
        self.check(None, "mesh/a.cc", CC + "int f();\n")
        self.check(None, "mesh/weights.bin", "int f(); ")
        self.check("starts without", "mesh/a.cc", "int f();\n")
        self.check("starts without", "tools/a", "#!/bin/sh\necho\n")
        self.check("no newline", "mesh/a.cc", CC + "int f();")
        self.check("white space", "mesh/a.cc", CC + "int f(); \n")
        self.check("is it one concept", "mesh/a.cc", CC + 700 * "int f();\n")
        self.check("finish it", "mesh/a.cc", CC + "// TO" + "DO: more\n")

    def test_headers(self):
        self.check(None, "mesh/a.h", HEADER.format("int f();"))
        self.check("lacks the line", "mesh/b.h", HEADER.format("int f();"))
        self.check("belongs in a .cc", "mesh/a.h",
                   HEADER.format('#include "Eigen/Core"'))
        self.check(None, "mesh/a-inl.h", CC + '#include "hwy/highway.h"\n')

    def test_includes(self):
        for path in ("mesh/a.h", "a.h", "../mesh/a.h"):
            self.check("our headers are included", "mesh/a.cc",
                       CC + f'#include "{path}"\n')
        for path in ("crosshatch/mesh/a.h", "absl/status/status.h"):
            self.check(None, "mesh/a.cc", CC + f'#include "{path}"\n')

    def test_ranks(self):
        for path in ("mesh/a_test.cc", "tests/a_test.cc", "nn/a_testutil.cc"):
            self.check("names an engine", path, CC + "auto s = RunLocal(2, f);\n")
        self.check("names an engine", "nn/a_test.cc", CC + "void F(LocalOptions);\n")
        for path in ("mesh/a.cc", "comm/local/a_test.cc", "tests/program.cc"):
            self.check(None, path, CC + "auto s = RunLocal(2, f);\n")
        self.check(None, "mesh/a_test.cc", CC + "auto s = RunRanks(2, f);\n")

    def test_forbidden(self):
        self.check("std::mutex", "mesh/a.cc", CC + "absl::Mutex m;\n")
        self.check("CH_SKIP_ON", "mesh/a.cc", CC + "GTEST_SKIP();\n")
        self.check("name what is used", "mesh/a.cc",
                   CC + "using namespace absl;\n")
        self.check(None, "mesh/a.cc", CC + "std::mutex mutex;\n")

    def test_definitions(self):
        def findings(*bodies):
            found = lint.Findings()
            lint.check_definitions(
                {f"mesh/{i}.cc": "namespace crosshatch {\n%s\n}\n" % body
                 for i, body in enumerate(bodies)}, found)
            return found.errors

        for body in ("struct Factor { int a; };", "class Factor final : B<1> {};",
                     "enum class Factor : uint8_t { kA };",
                     "template <typename T>\nclass Factor {};",
                     "inline int Factor(int a) { return a; }",
                     "template <typename T>\nint Factor(T a) { return a; }",
                     "namespace a::b { union Factor {}; }"):
            self.assertEqual(len(findings(body, "int f();", body)), 1, body)
            self.assertIn("is defined in mesh/0.cc too", findings(body, body)[0])
            hidden = "namespace {\n%s\n}" % body
            self.assertEqual(findings(body, hidden, hidden), [], body)
        for one, other in (
                ("struct Factor {};", "struct Factor;"),
                ("struct Factor {};", "namespace tp { struct Factor {}; }"),
                ("struct Factor {};", "struct Rule { struct Factor {}; };"),
                ("struct Factor {};", "void f() { struct Factor {}; }"),
                ("struct Factor {};", "// struct Factor {};"),
                ("struct Factor {};", 'const char* a = "struct Factor {";'),
                ("struct Factor {};", "void f(struct Factor a) { g(); }"),
                ("inline int F(int a) { return a; }",
                 "inline int F(float a) { return 1; }")):
            self.assertEqual(findings(one, other), [], other)
            self.assertEqual(findings(other, one), [], other)

    def test_build_loads(self):
        self.check(None, "mesh/BUILD", BUILD + 'load("@a//a:b.bzl", "c")\n'
                   'load("//a:b.bzl", "d", "e")\nc()\nd()\ne()\n')
        self.check("does not use it", "mesh/BUILD",
                   BUILD + 'load("//a:b.bzl", "c")\n')
        self.check("symbols are not sorted", "mesh/BUILD",
                   BUILD + 'load("//a:b.bzl", "d", "c")\nc()\nd()\n')
        self.check("load() statements are not sorted", "mesh/BUILD",
                   BUILD + 'load("//a:b.bzl", "c")\nload("@a//a:b.bzl", "d")\n'
                   "c()\nd()\n")
        self.check("load() after", "mesh/BUILD", BUILD + 'f(name = "a")\n'
                   'load("//a:b.bzl", "c")\nc()\n')

    def test_build_rules(self):
        rule = BUILD + 'f(\n    name = "a",\n    deps = [{}],\n)\n'
        self.check(None, "mesh/BUILD", rule.format(
            '":b", "//base", "//base:check", "//tensor:shape", "//tensor/ops:a",'
            ' "@eigen"'))
        self.check("not sorted", "mesh/BUILD", rule.format('"@eigen", ":b"'))
        self.check("there twice", "mesh/BUILD", rule.format('":b", ":b"'))
        self.check("name comes first", "mesh/BUILD",
                   BUILD + 'f(deps = [":b"], name = "a")\n')
        self.check("use ch_cc_library", "mesh/BUILD",
                   BUILD + 'cc_library(name = "a")\n')
        self.check("not readable", "mesh/BUILD", BUILD + "f(\n")
        self.check("load the rule", "mesh/a.bzl", BUILD + "native.cc_test()\n")

    def test_markdown(self):
        words = 20 * "words "  # 120 columns
        self.check(None, "docs/a.md", "# A\n\n" + words[:100].rstrip() + "\n")
        self.check("a.md:3: ends after column 100", "docs/a.md", "# A\n\n" + words + "\n")
        self.check("a.md:4: ends after", "a.md", "```\na\n```\n" + words + "\n")
        self.check(None, "docs/a.md", "| " + words + "|\n")
        self.check(None, "docs/a.md", "```\n" + words + "\n```\n")
        self.check(None, "docs/a.md", "<!-- lines: " + words + "-->\n")
        self.check(None, "docs/a.md", "x" * 120 + "\n")

    def test_threads(self):
        def said(build, **sources):
            found = lint.Findings()
            lint.check_threads("base/BUILD", build, {
                name.replace("__", "."): text for name, text in sources.items()}, found)
            return found.errors

        plain = 't(name = "a_test", srcs = ["a_test.cc"])\n'
        tagged = 't(name = "b_test", srcs = ["b_test.cc"], tags = ["2d", "threads"])\n'
        threads = "#include <mutex>\n"
        self.assertEqual(said(plain, a__h="#include <map>\n", a_test__cc=threads), [])
        self.assertEqual(said(tagged, b__h=threads, b__cc=threads, c__cc=threads), [])
        self.assertEqual(said('l(name = "u", testonly = True, hdrs = ["u.h"])\n',
                              u__h=threads), [])
        self.assertIn("a.h synchronises", said(plain + tagged, a__h=threads)[0])
        self.assertIn("c.cc synchronises", said(plain, c__cc=threads)[0])
        self.assertIn("b-inl.h synchronises", said("", **{"b-inl__h": threads})[0])


if __name__ == "__main__":
    unittest.main()
