# SPDX-License-Identifier: Apache-2.0
"""@local_config_cuda: the CUDA toolkit of this machine, or its absence.

Targets: headers, cudart, cublas_lt, nccl. Without a toolkit the repository has
the same targets, empty, and cuda_library says what is missing when it is built.
"""

_DEFS = """# What cuda_library needs to know of the toolkit; home is "" without one.
CUDA_HOME = {home}
CUDA_ARCHITECTURES = {architectures}
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = {hdrs},
    includes = {includes},
)
"""

_LIBRARY = """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
    deps = [":headers"],
)
"""

def _cuda_configure_impl(rctx):
    home = ""
    for candidate in [
        rctx.os.environ.get("CUDA_HOME", ""),
        rctx.os.environ.get("CUDA_PATH", ""),
        "/usr/local/cuda",
    ]:
        if not home and candidate and rctx.path(candidate + "/bin/nvcc").exists:
            home = candidate
    architectures = rctx.os.environ.get("CROSSHATCH_CUDA_ARCHITECTURES", "80,90,100")
    rctx.file("defs.bzl", _DEFS.format(
        home = repr(home),
        architectures = repr(architectures.split(",")),
    ))
    build = []
    libraries = {"cudart": [], "cublas_lt": [], "nccl": []}
    if home:
        rctx.symlink(home + "/include", "include")
        libs = home + "/lib64"

        # cublasLt and NCCL are hundreds of MB: linked where they lie.
        search = ["-L" + libs, "-Wl,-rpath," + libs]
        libraries = {
            "cudart": ["-L" + libs, "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
            "cublas_lt": search + ["-lcublasLt"],
            "nccl": search + ["-lnccl"],
        }
    directory = ["include"] if home else []
    build.append(_BUILD.format(hdrs = repr(directory), includes = repr(directory)))
    for name, linkopts in libraries.items():
        build.append(_LIBRARY.format(name = name, linkopts = repr(linkopts)))
    rctx.file("BUILD.bazel", "".join(build))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    local = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "CROSSHATCH_CUDA_ARCHITECTURES"],
)
