# SPDX-License-Identifier: Apache-2.0
"""The macros that every BUILD file of Crosshatch uses instead of cc_*.

    load("//tools:crosshatch.bzl", "ch_cc_library", "ch_cc_test", "ch_rank_test")

    # One target per concept, private by default.
    ch_cc_library(
        name = "dtype",
        srcs = ["dtype.cc"],
        hdrs = ["dtype.h"],                  # "crosshatch/tensor/dtype.h"
        visibility = ["//:users_of_tensor"], # the layers above, and //tests
        deps = [
            "//base:check",
            "@com_google_absl//absl/strings",
        ],
    )

    # The package's public API has the package's name.
    ch_cc_library(
        name = "tensor",
        hdrs = ["tensor.h"],
        visibility = ["//visibility:public"],
        deps = [":dtype"],
    )

    ch_cc_test(                              # with gtest and its main
        name = "unit_test",                  # the tests of a package are one
        srcs = [                             # program, compiled as one file
            "dtype_test.cc",
            "shape_test.cc",
        ],
        deps = [
            ":dtype",
            ":shape",
        ],
    )

    ch_cuda_library(                         # compiled by nvcc, with --config=cuda
        name = "copy_cuda",
        srcs = ["copy.cu"],
        deps = [":copy"],                    # its headers
    )

    ch_emulated_cuda_library(                # for tests on any machine
        name = "copy_emulated",
        srcs = ["copy.cu"],
        deps = [":copy"],
    )

    ch_rank_test(                            # ranks are threads of one process
        name = "all_gather_test",
        srcs = ["all_gather_test.cc"],
        ranks = 4,                           # most rank threads at one time
        engines = ["local", "mpi", "nccl"],  # ..._on_mpi: ranks are processes;
                                             # ..._on_nccl: by emulated NCCL
        devices = ["cpu", "cuda"],           # ..._on_cuda: on emulated devices;
                                             # with --config=cuda ..._on_gpus,
                                             # ..._on_2_gpus, ..._on_nccl_gpus
        deps = [
            ":comm",
            "//testing:ranks",               # RunRanks, OnMesh, CH_EXPECT_EQ
        ],
    )

    ch_mpi_test(                             # ranks are processes of an MPI job
        name = "mpi_conformance_test",
        srcs = ["mpi_conformance_test.cc"],
        ranks = [1, 2, 4],                   # one job each, of one program
        deps = [":comm"],
    )

    ch_gpu_test(                             # with --config=cuda, on a device
        name = "copy_on_gpus_test",
        srcs = ["copy_test.cc"],
        gpus = 2,                            # skipped if there are fewer
        deps = [":copy_cuda"],
    )

  * List every header in `hdrs`, private ones too (of a private target): only
    those can be included as "crosshatch/<package>/<file>.h".
  * Visibility: private; ["//tensor:__subpackages__"] for the subpackages;
    ["//:users_of_<layer>"] for the layers above; public for the package's API.
  * External labels: @com_google_absl//absl/status, @com_google_absl//absl/...,
    @com_google_googletest//:gtest (in libraries for tests), @eigen, @highway,
    @onednn, @nlohmann_json, @google_benchmark, @mpi, @ucx,
    @protobuf_lite. Eigen, Highway, oneDNN and JSON are for .cc files only.
  * Tags of tests:
      "threads": starts or synchronizes threads; CI runs it under ThreadSanitizer
        (CONTRIBUTING.md has the rule).
      "2d": combines FSDP and TP.
      "fuzz": reads $CROSSHATCH_FUZZ_SEED; tools/nightly runs it with many seeds.
      "nightly": takes too long for every change; only tools/nightly runs it.
      "injected": injects races; not run under ThreadSanitizer.
      "uninstrumented": uses a library whose synchronization ThreadSanitizer
        cannot follow (UCX); not run under it.
      "cuda_emulation": runs CUDA code without a device.
      "requires-gpu": runs on a device (ch_gpu_test adds it).
  * A kernel uses Highway's run-time dispatch (hwy/foreach_target.h); it gets no
    -march flag, so one binary runs on every machine. Include its own file as
    HWY_TARGET_INCLUDE "tensor/kernels/cpu/add.cc" (from the repository's root).
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("@rules_shell//shell:sh_test.bzl", "sh_test")
load("//third_party/cuda:cuda_library.bzl", "cuda_library")
load("//tools:compiling.bzl", "COPTS", "KERNEL_COPTS", "TEST_COPTS", "joined_cuda_sources", "joined_sources", "settings")
load("//tools:gpus.bzl", "NCCL_SHARES_GPUS", "gpu_requirement", "needs_gpus")
load("//tools:layers.bzl", "check_layer")

# target_compatible_with of CUDA's code: wildcards skip it without --config=cuda.
NEEDS_CUDA = select({
    "//:with_cuda": [],
    "//conditions:default": ["//third_party:needs_config_cuda"],
})

# target_compatible_with of MPI's code: wildcards skip it without //:mpi.
NEEDS_MPI = select({
    "//:with_mpi": [],
    "//conditions:default": ["//third_party:needs_mpi"],
})

# The same for UCX and //:ucx.
NEEDS_UCX = select({
    "//:with_ucx": [],
    "//conditions:default": ["//third_party:needs_ucx"],
})

GTEST_MAIN = "@com_google_googletest//:gtest_main"

def _check(name, deps):
    check_layer(native.package_name(), name, deps)

def ch_cc_library(name, srcs = [], hdrs = [], deps = [], copts = [], optimised = False, **kwargs):
    """A library whose headers are included as crosshatch/<package>/<file>.h.

    Args:
      name: of the library.
      srcs: its sources.
      hdrs: its headers, private ones too.
      deps: what it includes.
      copts: in addition to those of every library.
      optimised: whether a testonly library is optimised, because it computes for
        longer than it takes to compile.
      **kwargs: of the cc_library.
    """
    _check(name, deps)
    for src in srcs if type(srcs) == "list" else []:
        if src.endswith(".h"):
            fail("{}: list {} in hdrs; a private header belongs to a private target".format(name, src))
    is_kernel = copts == KERNEL_COPTS
    if not is_kernel:
        # A file of kernels is compiled once for each instruction set.
        srcs = joined_sources(name, srcs, kwargs.get("testonly"))
    if kwargs.get("testonly") and not optimised:
        base, more = settings(TEST_COPTS, "test")
    else:
        # With a precompiled header of -O2, GCC compiles the functions of Highway's targets at -O2,
        # whatever the file's -O. So kernels have their own header.
        base, more = settings(COPTS, "kernel" if is_kernel else "library")
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = base + copts,
        include_prefix = "crosshatch/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        deps = deps + more,
        **kwargs
    )

def ch_cc_binary(name, deps = [], copts = [], **kwargs):
    """A program."""
    _check(name, deps)
    base, more = settings(COPTS, "library")
    cc_binary(
        name = name,
        copts = base + copts,
        deps = deps + more,
        **kwargs
    )

def ch_cc_test(
        name,
        srcs = [],
        deps = [],
        copts = [],
        size = None,
        main = GTEST_MAIN,
        **kwargs):
    """A GoogleTest test, of one file or several; gtest, gmock and `main` come along."""
    _check(name, deps)
    if size == None:
        size = "small" if len(srcs) < 2 else "medium"
    base, more = settings(TEST_COPTS, "test")
    cc_test(
        name = name,
        srcs = joined_sources(name, srcs, True),
        size = size,
        copts = base + copts,
        deps = deps + more + [main],
        **kwargs
    )

def ch_nightly_test(name, program, env, ranks = 1, size = "large", visibility = None):
    """The whole of what the test `program` shows in part, for tools/nightly.

    It is the same program, which is built once.

    Args:
      name: of the test.
      program: a test of the same package.
      env: the variables by which that does all.
      ranks: the maximum number of ranks at one time.
      size: of the test.
      visibility: of the test.
    """
    sh_test(
        name = name,
        size = size,
        srcs = [program],
        data = [program],
        env = env,
        tags = ["nightly", "cpu:" + str(ranks)],
        visibility = visibility,
    )

def ch_cuda_library(name, srcs, deps = [], **kwargs):
    """Device code (.cu); its header is a ch_cc_library among the deps.

    Wildcards skip it in a build without --config=cuda.
    """
    _check(name, deps)
    cuda_library(
        name = name,
        srcs = srcs,
        target_compatible_with = NEEDS_CUDA,
        deps = deps + ["@local_config_cuda//:cudart"],
        **kwargs
    )

def ch_gpu_test(
        name,
        gpus = 1,
        tags = [],
        deps = [],
        copts = [],
        size = "small",
        visibility = None,
        **kwargs):
    """A GoogleTest test with exclusive use of its GPUs.

    <name>_program is built with --config=cuda on any machine. If //:gpus is less
    than `gpus`, the test is skipped and <name>.gpus prints so (docs/runners.md).

    Args:
      name: of the test.
      gpus: the number it needs: 1, 2, 4 or 8.
      tags: of the test.
      deps: of the program, in addition to gtest, gmock and their main.
      copts: of the program.
      size: of the test. Its time does not include the wait for GPUs.
      visibility: of the test and the program.
      **kwargs: of the program.
    """
    _check(name, deps)
    base, more = settings(TEST_COPTS, "test")
    cc_binary(
        name = name + "_program",
        testonly = True,
        copts = base + copts,
        target_compatible_with = NEEDS_CUDA,
        visibility = visibility,
        deps = deps + more + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
    _run_on_gpus(
        name = name,
        size = size,
        gpus = gpus,
        arguments = ["$(rootpath :{}_program)".format(name)],
        data = [":{}_program".format(name)],
        tags = tags,
        visibility = visibility,
    )

def ch_gpu_script_test(name, gpus, script, args = [], data = [], tags = [], size = "medium", visibility = None):
    """A script with exclusive use of its GPUs, which tests programs on them.

    Args:
      name: of the test; skipped as that of ch_gpu_test.
      gpus: the number it needs: 1, 2, 4 or 8.
      script: an executable file.
      args: of the script.
      data: what it needs.
      tags: of the test.
      size: of the test. Its time does not include the wait for GPUs.
      visibility: of the test.
    """
    _run_on_gpus(
        name = name,
        size = size,
        gpus = gpus,
        arguments = ["$(rootpath {})".format(script)] + args,
        data = [script] + data,
        tags = tags,
        visibility = visibility,
    )

# Bazel's default timeouts of tests.
_SECONDS = {"small": 60, "medium": 300, "large": 900}

def _run_on_gpus(name, size, gpus, arguments, data, tags, visibility):
    """A test that runs `arguments` on GPUs, and the target that reports a skip."""
    sh_test(
        name = name,
        size = size,
        # run_gpu_test has the timeout.
        timeout = "eternal",
        srcs = ["//tools:run_gpu_test"],
        args = [str(gpus), str(_SECONDS[size])] + arguments,
        data = data,
        exec_properties = {"gpus": str(gpus)},
        tags = tags + ["requires-gpu"],
        target_compatible_with = needs_gpus(gpus),
        visibility = visibility,
    )
    gpu_requirement(
        name = name + ".gpus",
        count = gpus,
        target_compatible_with = NEEDS_CUDA,
        test = "//{}:{}".format(native.package_name(), name),
        visibility = ["//visibility:private"],
    )

def ch_emulated_cuda_library(name, srcs, deps = [], **kwargs):
    """The same sources (.cu), compiled by the host's compiler for the emulation.

    For tests, on any machine: no toolkit and no device are needed
    (//emulation).
    """
    _check(name, deps)

    # Optimised, unlike a test's own code.
    base, more = settings(COPTS, "library")
    cc_library(
        name = name,
        testonly = True,
        srcs = joined_cuda_sources(name, srcs),
        hdrs = srcs,
        # Kernels have pragmas that unroll loops, for nvcc.
        copts = base + ["-Wno-unknown-pragmas"],
        include_prefix = "crosshatch/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        deps = deps + ["//emulation"] + more,
        **kwargs
    )

def ch_rank_test(
        name,
        ranks,
        engines = ["local"],
        devices = ["cpu"],
        skips = {},
        nightly = [],
        tags = [],
        deps = [],
        **kwargs):
    """A test that runs up to `ranks` ranks, each a thread of its one process.

    Bazel counts it as that many busy cores, so that the rank threads of
    concurrent tests do not time out. Each engine and each device
    adds targets that run all cases of the same program, except those that skip
    themselves (testing/engine.h).

    Args:
      name: of the test.
      ranks: the maximum number of ranks at one time.
      engines: any of
        "local";
        "mpi": adds <name>_on_mpi, in which each rank is a process. Wildcards skip
          it if //:mpi is off;
        "two_hosts": adds <name>_on_two_hosts, as in ch_mpi_test;
        "nccl": adds <name>_on_nccl, with at most 8 ranks, by an emulated NCCL,
          and with --config=cuda <name>_on_nccl_gpus, by the toolkit's NCCL.
      devices: any of
        "cpu";
        "cuda": adds <name>_on_cuda, on two emulated CUDA devices, and with
          --config=cuda <name>_on_gpus and <name>_on_2_gpus, whose ranks share one
          and two GPUs. Tests with the tag "injected" do not run on GPUs.
      skips: the number of cases that skip themselves, by engine or device.
      nightly: those of `engines` and `devices` that only tools/nightly runs.
      tags: of the test. The added targets have them except for "threads".
      deps: of the ch_cc_test.
      **kwargs: of the ch_cc_test. `size` is that of all targets.
    """
    for way in engines + devices + nightly + skips.keys():
        if way not in _WAYS:
            fail("{}: engines and devices are {}, not {}".format(name, _WAYS, way))
    args = {
        way: _WAYS[way] + ["--test_skips={}".format(skips.get(way, 0))]
        for way in _WAYS
    }

    # ThreadSanitizer does not support the fibers of emulated kernels.
    linked = ["//testing:on_" + way for way in ["cuda", "nccl"] if way in engines + devices]
    ch_cc_test(
        name = name,
        # Packages below //testing only have tests on threads.
        main = "//testing:main" if len(engines) + len(devices) > 2 else GTEST_MAIN,
        tags = tags + ["ranks", "cpu:" + str(ranks)],
        deps = deps + select({
            "//tools:thread_sanitizer": [],
            "//conditions:default": linked,
        }),
        **kwargs
    )
    visibility = kwargs.get("visibility")
    size = kwargs.get("size") or "medium"
    tags = [tag for tag in tags if tag != "threads"] + ["cpu:" + str(ranks)]
    for way in ["cuda", "nccl"]:
        if way in engines + devices:
            sh_test(
                name = "{}_on_{}".format(name, way),
                size = size,
                srcs = [":" + name],
                args = args[way],
                data = [":" + name],
                tags = tags + ["cuda_emulation"] + (["nightly"] if way in nightly else []),
                target_compatible_with = select({
                    "//:with_cuda": ["//third_party:needs_to_be_without_config_cuda"],
                    "//conditions:default": [],
                }),
                visibility = visibility,
            )
    if "injected" not in tags:
        for suffix, way, gpus in [
            ("_on_gpus", "cuda", 1),
            ("_on_2_gpus", "cuda", 2),
            ("_on_nccl_gpus", "nccl", 1 if NCCL_SHARES_GPUS else 4 if ranks <= 4 else 8),
        ]:
            if way in engines + devices:
                _run_on_gpus(
                    name = name + suffix,
                    size = size,
                    gpus = gpus,
                    arguments = ["$(rootpath :{})".format(name)] + args[way],
                    data = [":" + name],
                    tags = tags,
                    visibility = visibility,
                )
    for way, runner in [("mpi", "run_mpi_test"), ("two_hosts", "run_mpi_test_on_two_hosts")]:
        if way in engines:
            _run_by_mpi(
                name = "{}_on_{}".format(name, way),
                program = name,
                ranks = ranks,
                seconds = 280 if size == "large" else 100,
                args = args[way],
                tags = tags + (["nightly"] if way in nightly else []),
                visibility = visibility,
                runner = runner,
            )

# Arguments that select a program's engine and device.
_WAYS = {
    "cpu": [],
    "local": [],
    "mpi": ["--test_engine=mpi"],
    "two_hosts": ["--test_engine=mpi"],
    "nccl": ["--test_engine=nccl", "--test_device=cuda"],
    "cuda": ["--test_device=cuda"],
}

def _run_by_mpi(name, program, ranks, seconds, args, tags, visibility, runner = "run_mpi_test", transport = "mpi"):
    """A test that runs :<program> as processes of an MPI job."""
    by_ucx = transport == "ucx"
    sh_test(
        name = name,
        size = "small" if seconds <= 50 else "medium",
        srcs = ["//tools:" + runner],
        args = [
            str(ranks),
            str(seconds),
        ] + (["-x", "CROSSHATCH_TEST_TRANSPORT=ucx"] if by_ucx else []) + [
            "$(rootpath :{})".format(program),
        ] + args,
        data = [":" + program],
        tags = tags + ["mpi", "cpu:" + str(ranks)],
        target_compatible_with = NEEDS_MPI + (NEEDS_UCX if by_ucx else []),
        visibility = visibility,
    )

def ch_mpi_test(
        name,
        ranks,
        tags = [],
        deps = [],
        copts = [],
        seconds = 100,
        two_hosts = [],
        ucx = [],
        ucx_on_two_hosts = [],
        visibility = None,
        **kwargs):
    """A GoogleTest test that runs as an MPI job, in which each process runs all cases.

    Creates the program <name>_program, a test <name>_<n> for each n of `ranks`,
    which starts mpirun, and the suite :<name>. Wildcards skip them if //:mpi is
    off.

    Args:
      name: of the suite.
      ranks: the numbers of processes, a list.
      tags: of the tests; Bazel counts each as that many busy cores.
      deps: of the program, in addition to gtest, gmock and their main.
      copts: of the program.
      seconds: the timeout of one job.
      two_hosts: numbers of processes; adds a test <name>_<n>_on_two_hosts for
        each, with half of the processes in another network namespace, reached by
        TCP. If the machine has no namespaces, the test prints so and passes.
      ucx: as `ranks`, for tests <name>_<n>_by_ucx, with the variable
        CROSSHATCH_TEST_TRANSPORT=ucx.
      ucx_on_two_hosts: the same of `two_hosts`.
      visibility: of the suite, its tests and the program.
      **kwargs: for the program.
    """
    _check(name, deps)
    base, more = settings(TEST_COPTS, "test")
    cc_binary(
        name = name + "_program",
        testonly = True,
        copts = base + copts,
        target_compatible_with = NEEDS_MPI,
        visibility = visibility,
        deps = deps + more + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
    tests = []
    for suffix, numbers, runner, transport in [
        ("", ranks, "run_mpi_test", "mpi"),
        ("_on_two_hosts", two_hosts, "run_mpi_test_on_two_hosts", "mpi"),
        ("_by_ucx", ucx, "run_mpi_test", "ucx"),
        ("_by_ucx_on_two_hosts", ucx_on_two_hosts, "run_mpi_test_on_two_hosts", "ucx"),
    ]:
        for n in numbers:
            tests.append("{}_{}{}".format(name, n, suffix))
            _run_by_mpi(
                name = tests[-1],
                program = name + "_program",
                ranks = n,
                seconds = seconds,
                args = [],
                tags = tags,
                visibility = visibility,
                runner = runner,
                transport = transport,
            )
    native.test_suite(
        name = name,
        tests = [":" + test for test in tests],
        visibility = visibility,
    )

def ch_cc_benchmark(name, deps = [], copts = [], **kwargs):
    """A Google Benchmark program: bazel run //pkg:name -- --benchmark_filter=X."""
    _check(name, deps)
    base, more = settings(COPTS, "library")
    cc_binary(
        name = name,
        testonly = True,
        copts = base + copts,
        deps = deps + more + ["@google_benchmark//:benchmark_main"],
        **kwargs
    )
