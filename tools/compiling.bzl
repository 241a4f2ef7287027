# SPDX-License-Identifier: Apache-2.0
"""How the macros of crosshatch.bzl compile sources: options, precompiled headers, and
several sources as one file."""

load("//third_party/precompiled:precompiled.bzl", "precompiled_copts")

# Only explicit fused multiply-adds, so that sums have the same bits for every instruction set and
# optimisation level.
COPTS = [
    "-std=c++20",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wsign-compare",
    "-Wno-missing-field-initializers",  # designated initializers omit fields
    "-Wno-maybe-uninitialized",  # false alarms of GCC 12 on std::optional
]

# For kernels: the compiler vectorizes conversion loops.
KERNEL_COPTS = ["-O3"]

# A test's own code is compiled for longer than it runs; the library under test is optimised.
# Fortified functions need optimisation.
TEST_COPTS = COPTS + select({
    "//tools:optimised": [
        "-O0",
        "-U_FORTIFY_SOURCE",
    ],
    "//conditions:default": [],
})

def _precompiled(values):
    """Returns `values`, or nothing if the target has no precompiled headers."""
    if native.repository_name() != "@":
        # A consumer's sources may not compile with our headers first.
        return select({
            "//third_party/precompiled:in_consumers": values,
            "//conditions:default": [],
        })
    return select({
        "//third_party/precompiled:off": [],
        "//conditions:default": values,
    })

def settings(copts, precompiled):
    """Returns the copts and additional deps of a target that uses the header :<precompiled>."""
    if native.repository_name() == "@":
        # Warnings of a consumer's newer compiler must not fail their build.
        copts = copts + ["-Werror"]
    return (
        copts + _precompiled(precompiled_copts(precompiled)),
        _precompiled(["//third_party/precompiled:" + precompiled]),
    )

# The maximum number of joined sources.
_JOINED = 12

# For CUDA's sources on the host, which instantiate kernels for many dtypes.
_JOINED_CUDA = 4

def joined_sources(name, srcs, testonly):
    """Returns the sources to compile for `srcs`: joined ones, if there are several."""
    if type(srcs) != "list" or len(srcs) < 2 or [src for src in srcs if not src.endswith(".cc")]:
        return srcs
    joined = []
    for begin in range(0, len(srcs), _JOINED):
        part = srcs[begin:begin + _JOINED]
        joined.append("{}_{}_joined.cc".format(name, len(joined)))
        native.genrule(
            name = joined[-1][:-len(".cc")],
            testonly = testonly,
            srcs = part,
            outs = [joined[-1]],
            cmd = "$(execpath //tools:join_sources) $(SRCS) > $@",
            tools = ["//tools:join_sources"],
        )
    if native.repository_name() != "@":
        return joined

    # Separate sources reveal missing includes.
    return select({
        "//third_party/precompiled:off": srcs,
        "//conditions:default": joined,
    })

def joined_cuda_sources(name, srcs):
    """Returns sources for the host's compiler, each of which includes some of `srcs` (.cu)."""
    wrappers = []
    for begin in range(0, len(srcs), _JOINED_CUDA):
        part = srcs[begin:begin + _JOINED_CUDA]
        wrapper = "{}_{}_joined.cc".format(name, len(wrappers))
        lines = ["#define CROSSHATCH_CUDA_EMULATION 1"] + [
            "#include \"crosshatch/{}/{}\"".format(native.package_name(), src)
            for src in part
        ]
        native.genrule(
            name = wrapper + ".make",
            testonly = True,
            srcs = part,
            outs = [wrapper],
            cmd = "printf '{}\\n' >$@".format("\\n".join(lines)),
            visibility = ["//visibility:private"],
        )
        wrappers.append(wrapper)
    return wrappers
