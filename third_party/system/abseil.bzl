# SPDX-License-Identifier: Apache-2.0
"""@com_google_absl with upstream's labels, over the system's Abseil."""

load(":library.bzl", "missing")

# Upstream's package -> its targets. Without synchronization, because the system's absl::Mutex is
# not instrumented and ThreadSanitizer reports false races.
_TARGETS = {
    "algorithm": ["algorithm", "container"],
    "base": ["base", "config", "core_headers", "dynamic_annotations", "log_severity"],
    "cleanup": ["cleanup"],
    "container": [
        "btree",
        "fixed_array",
        "flat_hash_map",
        "flat_hash_set",
        "inlined_vector",
        "node_hash_map",
        "node_hash_set",
    ],
    "debugging": ["failure_signal_handler", "leak_check", "stacktrace", "symbolize"],
    "flags": [
        "commandlineflag",
        "config",
        "flag",
        "marshalling",
        "parse",
        "reflection",
        "usage",
    ],
    "functional": ["any_invocable", "bind_front", "function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "meta": ["type_traits"],
    "numeric": ["bits", "int128"],
    "random": ["random", "bit_gen_ref", "distributions", "seed_sequences"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "strings"],
    "time": ["time"],
    "types": ["any", "compare", "optional", "span", "variant"],
    "utility": ["utility"],
}

# For targets whose pkg-config module is not absl_<target>.
_MODULES = {
    "flags:commandlineflag": "absl_flags_commandlineflag",
    "flags:config": "absl_flags_config",
    "flags:flag": "absl_flags",
    "flags:marshalling": "absl_flags_marshalling",
    "flags:parse": "absl_flags_parse",
    "flags:reflection": "absl_flags_reflection",
    "flags:usage": "absl_flags_usage",
    "random:bit_gen_ref": "absl_random_bit_gen_ref",
    "random:distributions": "absl_random_distributions",
    "random:random": "absl_random_random",
    "random:seed_sequences": "absl_random_seed_sequences",
}

_SCRIPT = 'for m in "$@"; do echo "$m $(pkg-config --libs "$m")" || exit; done'

def _system_abseil_impl(rctx):
    if not rctx.which("pkg-config"):
        missing(rctx, "pkg-config", "pkg-config")
    if not rctx.path("/usr/include/absl/status/status.h").exists:
        missing(rctx, "The header absl/status/status.h", "libabsl-dev")
    modules = {}
    for package, targets in _TARGETS.items():
        for target in targets:
            label = package + ":" + target
            modules[label] = _MODULES.get(label, "absl_" + target)
    result = rctx.execute(["sh", "-ec", _SCRIPT, "sh"] + modules.values())
    if result.return_code != 0:
        missing(rctx, result.stderr.strip(), "libabsl-dev")
    linkopts = {}
    for line in result.stdout.splitlines():
        module, _, flags = line.partition(" ")
        linkopts[module] = [f for f in flags.split(" ") if f]

    for package, targets in _TARGETS.items():
        build = [
            'load("@rules_cc//cc:defs.bzl", "cc_library")',
            'package(default_visibility = ["//visibility:public"])',
        ]
        for target in targets:
            build.append('cc_library(name = "{}", linkopts = {})'.format(
                target,
                repr(linkopts[modules[package + ":" + target]]),
            ))
        rctx.file("absl/" + package + "/BUILD.bazel", "\n".join(build) + "\n")
    rctx.file("BUILD.bazel", "")

system_abseil = repository_rule(
    implementation = _system_abseil_impl,
    local = True,
)
