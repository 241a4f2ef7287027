# SPDX-License-Identifier: Apache-2.0
"""Tests of the example programs, written in Python."""

load("@rules_shell//shell:sh_test.bzl", "sh_test")

def program_test(name, src = None, program = ":train_lm", args = [], data = [], size = "medium", **kwargs):
    """A script that gets the path of a program as its first argument.

    Args:
      name: of the test.
      src: the script. Default: `name` with ".py".
      program: the target of the program.
      args: the arguments after it.
      data: what the script reads besides the program.
      size: of the test.
      **kwargs: of sh_test.
    """
    sh_test(
        name = name,
        size = size,
        srcs = [src or name + ".py"],
        args = ["$(location {})".format(program)] + args,
        data = [program] + data,
        **kwargs
    )
