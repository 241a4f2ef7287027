# SPDX-License-Identifier: Apache-2.0
"""The extension of MODULE.bazel: the repositories of deps.bzl, for bzlmod.

A consumer's MODULE.bazel puts a repository of its own in place of one so, as
tests/consumer/ does (Bazel 7.7 has override_repo, early versions of 7 have not):

    bazel_dep(name = "abseil-cpp", version = "...")
    system = use_extension("@crosshatch//third_party:extensions.bzl", "system")
    override_repo(system, com_google_absl = "abseil-cpp")
"""

load(":deps.bzl", "system_repositories")

def _define(rule, **kwargs):
    rule(**kwargs)

def _system_impl(_module_ctx):
    system_repositories(_define)

system = module_extension(implementation = _system_impl)
