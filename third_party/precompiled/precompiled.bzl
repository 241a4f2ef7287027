# SPDX-License-Identifier: Apache-2.0
"""precompiled_header: system headers that the compiler reads once for all files.

Reading the standard library, Abseil and GoogleTest takes two to three seconds of
the five to eight that a file takes. GCC maps what it has read before, where the
flags are the same; where they are not, and with Clang, it silently reads the
header itself, so nothing but time depends on this.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

# Without address space randomization GCC's output is deterministic, so dependents hit the shared
# cache. A container may forbid that.
_COMPILE = """
machine=$(uname -m)
if setarch "$machine" -R true 2>/dev/null; then
  exec setarch "$machine" -R "$@"
fi
exec "$@"
"""

def precompiled_copts(name):
    """The flags of a file that uses //third_party/precompiled:<name>.

    The path leads to the generated copy only: beside the source there is
    nothing precompiled.
    """
    return [
        "-include",
        "third_party/precompiled/generated/{}.h".format(name),
        # With precompiled headers GCC 12 gives false warnings about nested vectors. tools/nightly
        # plain gives the true ones.
        "-Wno-array-bounds",
        # Prevents GCC from scanning the precompiled data in each garbage collection, which takes a
        # tenth of the time. Clang ignores the option.
        "--param=ggc-min-heapsize=1048576",
        "-Wno-unused-command-line-argument",
    ]

def _precompiled_header_impl(ctx):
    toolchain = find_cc_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    header = ctx.actions.declare_file("generated/{}.h".format(ctx.label.name))
    ctx.actions.expand_template(
        output = header,
        template = ctx.file.hdr,
        substitutions = {},
    )
    precompiled = ctx.actions.declare_file("generated/{}.h.gch".format(ctx.label.name))
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = precompiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts +
                             ctx.attr.copts + ["-x", "c++-header"],
        use_pic = True,
    )
    arguments = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    environment = cc_common.get_environment_variables(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    ctx.actions.run_shell(
        command = _COMPILE,
        arguments = [toolchain.compiler_executable] + arguments,
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [precompiled],
        # Keeps the sandbox's path out of the output.
        env = dict(environment, PATH = "/usr/bin:/bin", PWD = "/proc/self/cwd"),
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling " + ctx.file.hdr.short_path,
    )
    return [
        DefaultInfo(files = depset([precompiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset([header, precompiled]),
        )),
    ]

precompiled_header = rule(
    doc = "System headers, for any cc_* rule whose copts are the same.",
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(
            default = Label("@bazel_tools//tools/cpp:current_cc_toolchain"),
        ),
    },
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)
