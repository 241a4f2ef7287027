# SPDX-License-Identifier: Apache-2.0
"""@local_config_cuda: the CUDA toolkit of this machine, or its absence.

Targets: headers, cudart, cublas_lt, nccl. Without a toolkit the repository has
the same targets, empty, and cuda_library says where one was looked for when it
is built. What a toolkit lacks is an error of who depends on it.
"""

_DEFS = """# What cuda_library needs to know of the toolkit; NVCC is "" without one.
NVCC = {nvcc}
# Oldest first.
CUDA_ARCHITECTURES = {architectures}
# The searched directories, and what they lack.
CUDA_SEARCHED = {searched}
# The number of GPUs of this machine.
CUDA_DEVICES = {devices}
# For example 22809 for 2.28.9; 0 without NCCL.
NCCL_VERSION = {nccl_version}
"""

_HEADERS = """
load("@rules_cc//cc:defs.bzl", "cc_library")
load(":missing_library.bzl", "missing_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = {directories},
    includes = {directories},
)
"""

_LIBRARY = """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
    deps = [":headers"],
)
"""

_MISSING = """
missing_library(
    name = "{name}",
    toolkit = "{nvcc}",
)
"""

def _cuda_configure_impl(rctx):
    python = rctx.which("python3")
    if not python:
        fail("@local_config_cuda needs python3 to look for the CUDA toolkit: install python3.")
    result = rctx.execute([python, rctx.path(rctx.attr._find_toolkit)])
    if result.return_code:
        fail("looking for the CUDA toolkit failed: " + result.stderr.strip())
    found = json.decode(result.stdout)
    rctx.file("defs.bzl", _DEFS.format(
        nvcc = repr(found["nvcc"]),
        architectures = repr(found["architectures"]),
        searched = repr(found["searched"]),
        devices = int(found["devices"]),
        nccl_version = int(found["nccl_version"]),
    ))

    # Not copied: cublasLt and NCCL have hundreds of MB.
    directories = []
    for directory in found["includes"]:
        directories.append("include_{}".format(len(directories)))
        rctx.symlink(directory, directories[-1])
    rctx.symlink(rctx.attr._missing, "missing_library.bzl")
    build = [_HEADERS.format(directories = repr(directories))]
    for name, linkopts in found["libraries"].items():
        if linkopts == None and found["nvcc"]:
            build.append(_MISSING.format(name = name, nvcc = found["nvcc"]))
        else:
            build.append(_LIBRARY.format(name = name, linkopts = repr(linkopts or [])))
    rctx.file("BUILD.bazel", "".join(build))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    attrs = {
        "_find_toolkit": attr.label(
            default = Label("//third_party/cuda:find_toolkit.py"),
            allow_single_file = True,
        ),
        "_missing": attr.label(
            default = Label("//third_party/cuda:missing_library.bzl"),
            allow_single_file = True,
        ),
    },
    configure = True,
    local = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "CROSSHATCH_CUDA_ARCHITECTURES", "VIRTUAL_ENV", "PATH"],
)
