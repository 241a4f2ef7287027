#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/reflow_markdown breaks, and what it leaves unchanged."""

import importlib.machinery
import importlib.util
import os
import unittest

_loader = importlib.machinery.SourceFileLoader(
    "reflow_markdown",
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "reflow_markdown"))
tool = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("reflow_markdown", _loader))
_loader.exec_module(tool)

WORDS = " ".join(["words"] * 30)  # 179 columns


class ReflowMarkdownTest(unittest.TestCase):

    def test_fills_what_is_too_long(self):
        lines = tool.reflow("# Title\n\n" + WORDS + "\nmore\n\nnext\n").split("\n")
        self.assertEqual([len(line) for line in lines], [7, 0, 95, 88, 0, 4, 0])

    def test_items_hang(self):
        lines = tool.reflow("- " + WORDS + "\n  10. " + WORDS + "\n").split("\n")
        self.assertEqual([line[:8] for line in lines],
                         ["- words ", "  words ", "  10. wo", "      wo", ""])

    def test_code_and_links_are_whole(self):
        for whole in ("`" + "a b " * 5 + "`", "[" + "a b " * 5 + "](docs/a.md)"):
            for before in range(10):
                text = WORDS[:90 + before] + " " + whole + " " + WORDS
                self.assertIn(whole, tool.reflow(text))

    def test_no_line_begins_with_what_would_be_markup(self):
        for mark in ("-", "+", "#", "1.", "|", ">"):
            for before in range(80, 101):
                text = "x" * before + " " + mark + " " + WORDS
                lines = tool.reflow(text).split("\n")
                self.assertFalse([l for l in lines if l.startswith(mark)], text)

    def test_leaves_the_rest_alone(self):
        for text in ("a\nb\n", "| " + WORDS + " |\n", "```\n" + WORDS + "\n```\n",
                     "# " + WORDS + "\n", "<!-- " + WORDS + " -->\n", "x" * 120 + "\n",
                     "an odd ` and [ \n"):
            self.assertEqual(tool.reflow(text), text)

    def test_twice_is_once(self):
        once = tool.reflow(WORDS + "\n- " + WORDS + "\n")
        self.assertEqual(tool.reflow(once), once)


if __name__ == "__main__":
    unittest.main()
