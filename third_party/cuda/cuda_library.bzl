# SPDX-License-Identifier: Apache-2.0
"""cuda_library: .cu files compiled by nvcc, for any cc_* rule to depend on."""

load("@local_config_cuda//:defs.bzl", "CUDA_ARCHITECTURES", "CUDA_SEARCHED", "NVCC")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")
load("//third_party:flags.bzl", "BoolFlagInfo")

_MODE_FLAGS = {
    "dbg": ["-O0", "-g"],
    "fastbuild": ["-O1"],
    "opt": ["-O3", "-DNDEBUG"],
}

# The maximum number of sources that --//third_party/cuda:quick joins.
_JOINED = 8

def _architecture_flags(architectures):
    """One translation to the PTX of the oldest architecture, assembled for each.

    No source asks for the architecture, so that another translation would give the
    same PTX. It is kept, and newer devices compile it when they load it.
    """
    oldest = architectures[0]
    codes = ["sm_{}".format(a) for a in architectures] + ["compute_{}".format(oldest)]
    return ["-gencode=arch=compute_{},code=[{}]".format(oldest, ",".join(codes))]

def _joined(ctx, srcs):
    """Sources that include `srcs`, some at a time: what all of those include, most
    of the time that nvcc takes for a source, is read once for each."""
    joined = []
    for begin in range(0, len(srcs), _JOINED):
        out = ctx.actions.declare_file("{}_{}_joined.cu".format(ctx.label.name, len(joined)))
        part = srcs[begin:begin + _JOINED]
        ctx.actions.write(out, "".join(["#include \"{}\"\n".format(src.path) for src in part]))
        joined.append(out)
    return joined

def _compile(ctx, src, context, toolchain, pic):
    quick = ctx.attr._quick[BoolFlagInfo].value
    out = ctx.actions.declare_file("_objs/{}/{}{}".format(
        ctx.label.name,
        src.basename[:-len(".cu")],
        ".pic.o" if pic else ".o",
    ))
    args = ctx.actions.args()

    # -objtemp: nvcc names its files in /tmp by its process id, which the
    # sandbox makes the same for parallel compilations.
    args.add_all(["-std=c++20", "-objtemp", "-x", "cu", "-c", src, "-o", out])
    args.add_all(["-ccbin", toolchain.compiler_executable])
    args.add_all(["--expt-relaxed-constexpr", "-Xcompiler", "-Wno-psabi"])

    # As on the CPU, only explicit multiply-adds are fused by default.
    fused = not quick and src.basename in ctx.attr.fused_srcs
    args.add("--fmad=" + ("true" if fused else "false"))
    if pic:
        args.add_all(["-Xcompiler", "-fPIC"])
    args.add_all(_MODE_FLAGS[ctx.var["COMPILATION_MODE"]])
    if quick:
        # Joined sources include others by path.
        args.add_all(["--Ofast-compile=max", "-I", "."])
    args.add_all(_architecture_flags(CUDA_ARCHITECTURES[:1] if quick else CUDA_ARCHITECTURES))
    args.add_all(context.defines, before_each = "-D")
    args.add("-I", ctx.label.workspace_root or ".")
    args.add_all(context.quote_includes, before_each = "-I")
    args.add_all(context.includes, before_each = "-I")
    args.add_all(context.system_includes, before_each = "-isystem")
    ctx.actions.run(
        executable = NVCC,
        arguments = [args],
        inputs = depset(
            [src] + (ctx.files.srcs if quick else []),
            transitive = [context.headers, toolchain.all_files],
        ),
        outputs = [out],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "CudaCompile",
        progress_message = "Compiling " + src.short_path,
    )
    return out

def _cuda_library_impl(ctx):
    if not NVCC:
        fail(("{} needs the CUDA toolkit, and none was found. Build without --config=cuda, " +
              "or set CUDA_HOME to one. Looked for at\n  {}").format(
            ctx.label,
            "\n  ".join(CUDA_SEARCHED),
        ))
    toolchain = find_cc_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = [dep[CcInfo] for dep in ctx.attr.deps]
    merged = cc_common.merge_cc_infos(cc_infos = deps)
    context = merged.compilation_context
    srcs = ctx.files.srcs
    for name in ctx.attr.fused_srcs:
        if name not in [src.basename for src in srcs]:
            fail("{}: no source {}".format(ctx.label, name))
    if ctx.attr._quick[BoolFlagInfo].value:
        srcs = _joined(ctx, srcs)

    # Declares both kinds. Bazel builds the one that is linked or, for the library alone, the one
    # that tests link.
    pic_objects = depset([_compile(ctx, s, context, toolchain, True) for s in srcs])
    outputs = cc_common.create_compilation_outputs(
        objects = depset([_compile(ctx, s, context, toolchain, False) for s in srcs]),
        pic_objects = pic_objects,
    )
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = outputs,
        disallow_dynamic_library = True,
        alwayslink = ctx.attr.alwayslink,
        linking_contexts = [merged.linking_context],
    )
    return [
        DefaultInfo(
            files = pic_objects,
            # For targets that use it as data instead of linking it.
            data_runfiles = ctx.runfiles(transitive_files = pic_objects),
            default_runfiles = ctx.runfiles(),
        ),
        # Users include its header and none of the toolkit's, so host code is the same as without
        # --config=cuda and comes from the cache.
        CcInfo(linking_context = linking),
    ]

cuda_library = rule(
    doc = """Device code. The header that declares what it defines belongs to a
    cc library among its deps, on which C++ callers depend, too. With
    --//third_party/cuda:quick sources are compiled several as one, so those of a
    library name what is at namespace scope apart.""",
    implementation = _cuda_library_impl,
    attrs = {
        "alwayslink": attr.bool(
            doc = "Whether all of it is linked, whoever names it.",
        ),
        "deps": attr.label_list(providers = [CcInfo]),
        "fused_srcs": attr.string_list(
            doc = """File names of sources whose products and sums the compiler may
            fuse. No bit of their results may depend on how a compiler does so.""",
        ),
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "_cc_toolchain": attr.label(
            default = Label("@bazel_tools//tools/cpp:current_cc_toolchain"),
        ),
        "_quick": attr.label(default = Label("//third_party/cuda:quick")),
    },
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)
