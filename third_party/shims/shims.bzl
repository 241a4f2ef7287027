# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the rule repositories that Bazel 4 would download.

Bazel 5 and later bring the real ones; Debian's Bazel 4.2.3 has these rules
built in, and only the files that would re-export them are missing. With these
four repositories a C++ build needs no network.
"""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")

_RULES_CC = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "objc_import",
    "objc_library",
]

_RULES_JAVA = [
    "java_binary",
    "java_import",
    "java_library",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

# A .bzl file cannot export a builtin under its own name.
_BUILTINS = "B_CcInfo = CcInfo\nB_cc_common = cc_common\n"

_FIND_CC_TOOLCHAIN = """
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", _find = "find_cpp_toolchain")

def find_cc_toolchain(ctx):
    return _find(ctx)

def use_cc_toolchain(mandatory = True):
    return ["@bazel_tools//tools/cpp:toolchain_type"]
"""

def _natives(names):
    return "".join(["{0} = native.{0}\n".format(name) for name in names])

_REPOSITORIES = {
    "rules_cc": {
        "cc/defs.bzl": _natives(_RULES_CC),
        "cc/find_cc_toolchain.bzl": _FIND_CC_TOOLCHAIN,
        "cc/common/builtins.bzl": _BUILTINS,
        "cc/common/cc_common.bzl": 'load(":builtins.bzl", "B_cc_common")\ncc_common = B_cc_common\n',
        "cc/common/cc_info.bzl": 'load(":builtins.bzl", "B_CcInfo")\nCcInfo = B_CcInfo\n',
    },
    "rules_java": {"java/defs.bzl": _natives(_RULES_JAVA)},
    "rules_shell": {
        "shell/sh_binary.bzl": _natives(["sh_binary"]),
        "shell/sh_library.bzl": _natives(["sh_library"]),
        "shell/sh_test.bzl": _natives(["sh_test"]),
    },
}

def _rule_shim_impl(rctx):
    rctx.file("BUILD.bazel", "")
    files = _REPOSITORIES[rctx.attr.repository]
    for path, content in files.items():
        rctx.file(path.rpartition("/")[0] + "/BUILD.bazel", "")
        rctx.file(path, content)

_rule_shim = repository_rule(
    implementation = _rule_shim_impl,
    attrs = {"repository": attr.string(mandatory = True)},
)

_COVERAGE_BUILD = """
load("@rules_shell//shell:sh_binary.bzl", "sh_binary")

package(default_visibility = ["//visibility:public"])

[sh_binary(name = name, srcs = ["coverage.py"]) for name in [
    "coverage_report_generator",
    "lcov_merger",
]]
"""

def _coverage_tools_impl(rctx):
    rctx.file("BUILD.bazel", _COVERAGE_BUILD)
    rctx.symlink(Label("//third_party/shims:coverage.py"), "coverage.py")

_coverage_tools = repository_rule(implementation = _coverage_tools_impl)

def rule_shims():
    """Defines the stand-ins where this Bazel needs them."""
    version = native.bazel_version  # empty in Debian's build of 4.2.3
    if version and not version.startswith("4."):
        return
    for repository in _REPOSITORIES:
        maybe(_rule_shim, name = repository, repository = repository)
    maybe(_coverage_tools, name = "remote_coverage_tools")
