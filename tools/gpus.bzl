# SPDX-License-Identifier: Apache-2.0
"""Selects the tests that run on this machine's GPUs: --//:gpus=N.

By default N is the number of GPUs of the machine. Wildcards skip a test that
needs more, and its <name>.gpus, which wildcards also build, prints so.
"""

load("@local_config_cuda//:defs.bzl", "CUDA_DEVICES", "NCCL_VERSION")

# Possible numbers of GPUs for a test. More rank threads share them.
GPU_COUNTS = [1, 2, 4, 8]

# Whether ranks may share a GPU with NCCL.
NCCL_SHARES_GPUS = NCCL_VERSION >= 23000

_Gpus = provider(doc = "The number of GPUs for tests.", fields = ["count"])

def _gpus_flag_impl(ctx):
    if ctx.build_setting_value < 0:
        fail("--{}={}: must be at least 0".format(ctx.label, ctx.build_setting_value))
    return _Gpus(count = ctx.build_setting_value)

_gpus_flag = rule(
    implementation = _gpus_flag_impl,
    build_setting = config.int(flag = True),
)

def _at_least_impl(ctx):
    enough = ctx.attr.flag[_Gpus].count >= ctx.attr.count
    return [config_common.FeatureFlagInfo(value = "true" if enough else "false")]

_at_least = rule(
    implementation = _at_least_impl,
    attrs = {
        "count": attr.int(),
        "flag": attr.label(providers = [_Gpus]),
    },
)

def gpu_settings():
    """Defines the flag //:gpus and the settings that needs_gpus reads, in the root package."""
    _gpus_flag(
        name = "gpus",
        build_setting_default = CUDA_DEVICES,
        visibility = ["//visibility:public"],
    )
    for count in GPU_COUNTS:
        _at_least(
            name = "at_least_{}_gpus".format(count),
            count = count,
            flag = ":gpus",
        )
        native.config_setting(
            name = "with_{}_gpus".format(count),
            flag_values = {
                ":at_least_{}_gpus".format(count): "true",
                ":cuda": "true",
            },
            visibility = ["//visibility:public"],
        )

def needs_gpus(count):
    """Returns target_compatible_with of a test that needs `count` GPUs, one of GPU_COUNTS."""
    if count not in GPU_COUNTS:
        fail("a test may need one of {} GPUs, not {}".format(GPU_COUNTS, count))
    return select({
        "//:with_{}_gpus".format(count): [],
        "//conditions:default": ["//third_party:needs_config_cuda_and_more_gpus"],
    })

def _gpu_requirement_impl(ctx):
    there = ctx.attr._flag[_Gpus].count
    if there < ctx.attr.count:
        # The only way for a rule to print a message.
        # buildifier: disable=print
        print("{} is left out: it needs {} GPU{}, and --//:gpus is {}".format(
            ctx.attr.test,
            ctx.attr.count,
            "" if ctx.attr.count == 1 else "s",
            there,
        ))

gpu_requirement = rule(
    doc = "If a test is skipped, prints so when it is built.",
    implementation = _gpu_requirement_impl,
    attrs = {
        "count": attr.int(mandatory = True, doc = "GPUs that the test needs."),
        "test": attr.string(mandatory = True, doc = "The test."),
        "_flag": attr.label(default = Label("//:gpus"), providers = [_Gpus]),
    },
)
