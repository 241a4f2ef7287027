# SPDX-License-Identifier: Apache-2.0
"""missing_library: a library that the CUDA toolkit was found without."""

load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _missing_library_impl(ctx):
    fail(("The CUDA toolkit of {} has no {}. Install it there, beside the other Python " +
          "packages, or set CUDA_HOME to a toolkit that has it.").format(
        ctx.attr.toolkit,
        ctx.label.name,
    ))

missing_library = rule(
    implementation = _missing_library_impl,
    attrs = {"toolkit": attr.string(doc = "Its compiler.")},
    provides = [CcInfo],
)
