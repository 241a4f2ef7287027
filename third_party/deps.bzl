# SPDX-License-Identifier: Apache-2.0
"""How Crosshatch finds what it depends on.

A consumer's WORKSPACE defines a repository named `crosshatch` and adds

    load("@crosshatch//third_party:deps.bzl", "crosshatch_deps")
    crosshatch_deps()

or, with bzlmod, its MODULE.bazel names the module `crosshatch`. Of a WORKSPACE
each repository below is defined only where the consumer has not defined one of
that name before, so any of them can be replaced. Those defined here take the
system's packages, and are looked for only when something built needs them.
"""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//third_party/cuda:configure.bzl", "cuda_configure")
load("//third_party/shims:shims.bzl", "rule_shims")
load("//third_party/system:abseil.bzl", "system_abseil")
load("//third_party/system:library.bzl", "system_library")

# Other projects' names of Abseil.
_OTHER_ABSEILS = ["abseil-cpp", "abseil_cpp", "absl", "com_github_abseil_abseil_cpp"]

def _check_one_abseil(existing):
    if "com_google_absl" in existing:
        return
    for name in _OTHER_ABSEILS:
        if name in existing:
            fail(("the WORKSPACE has an Abseil named @{0}, and Crosshatch would build with the " +
                  "system's: two in one program keep two of what Abseil keeps once. Name it " +
                  "com_google_absl before crosshatch_deps(); other repositories can have it " +
                  "as @{0} by repo_mapping").format(name))

def crosshatch_deps():
    """Defines the repositories that Crosshatch builds against.

    A WORKSPACE that has an Abseil under another name before is an error.
    """
    _check_one_abseil(native.existing_rules())
    rule_shims()
    system_repositories(maybe)

def system_repositories(define):
    """What both crosshatch_deps and the extension of MODULE.bazel define.

    Args:
      define: called with a repository rule and its arguments.
    """
    define(cuda_configure, name = "local_config_cuda")
    define(system_abseil, name = "com_google_absl")
    define(
        system_library,
        name = "com_google_googletest",
        header = "gmock/gmock.h",
        libraries = {
            "gtest": ["-lgmock", "-lgtest", "-lpthread"],
            "gtest_main": ["-lgmock_main", "-lgmock", "-lgtest", "-lpthread"],
        },
        package = "libgmock-dev libgtest-dev",
    )
    define(
        system_library,
        name = "boost_context",
        header = "boost/context/detail/fcontext.hpp",
        libraries = {"boost_context": ["-lboost_context"]},
        package = "libboost-context-dev",
    )
    define(
        system_library,
        name = "eigen",
        header = "Eigen/Core",
        include_dirs = ["/usr/include/eigen3", "/usr/local/include/eigen3"],
        libraries = {"eigen": []},
        package = "libeigen3-dev",
    )
    define(
        system_library,
        name = "onednn",
        header = "oneapi/dnnl/dnnl.hpp",
        libraries = {"onednn": ["-ldnnl"]},
        package = "libdnnl-dev",
    )
    define(
        system_library,
        name = "highway",
        header = "hwy/highway.h",
        libraries = {"highway": ["-lhwy"]},
        package = "libhwy-dev",
    )
    define(
        system_library,
        name = "nlohmann_json",
        header = "nlohmann/json.hpp",
        libraries = {"nlohmann_json": []},
        package = "nlohmann-json3-dev",
    )
    define(
        system_library,
        name = "google_benchmark",
        header = "benchmark/benchmark.h",
        libraries = {
            "google_benchmark": ["-lbenchmark", "-lpthread"],
            "benchmark_main": ["-lbenchmark_main", "-lbenchmark", "-lpthread"],
        },
        package = "libbenchmark-dev",
    )
    define(
        system_library,
        name = "mpi",
        # Uses Open MPI's C interface, not its C++ bindings.
        defines = ["OMPI_SKIP_MPICXX=1"],
        header = "mpi.h",
        include_dirs = [
            "/usr/lib/x86_64-linux-gnu/openmpi/include",
            "/usr/lib/aarch64-linux-gnu/openmpi/include",
        ],
        libraries = {"mpi": ["-lmpi"]},
        package = "libopenmpi-dev",
    )
    define(
        system_library,
        name = "ucx",
        header = "ucp/api/ucp.h",
        # Headers only: a job that uses UCX loads the library.
        libraries = {"ucx": []},
        package = "libucx-dev",
    )
    define(
        system_library,
        name = "protobuf_lite",
        header = "google/protobuf/message_lite.h",
        libraries = {"protobuf_lite": ["-lprotobuf-lite"]},
        package = "libprotobuf-dev protobuf-compiler",
    )
