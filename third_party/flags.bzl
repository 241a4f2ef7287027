# SPDX-License-Identifier: Apache-2.0
"""Command-line flags for BUILD files, as --//third_party:blas=eigen and --//:cuda."""

def _choice_flag_impl(ctx):
    if ctx.build_setting_value not in ctx.attr.values:
        fail("{} is one of {}, not '{}'".format(
            ctx.label,
            ", ".join(ctx.attr.values),
            ctx.build_setting_value,
        ))

choice_flag = rule(
    implementation = _choice_flag_impl,
    build_setting = config.string(flag = True),
    attrs = {"values": attr.string_list(mandatory = True)},
)

BoolFlagInfo = provider(
    doc = "What a bool_flag is, for rules.",
    fields = {"value": "Whether it is on."},
)

def _bool_flag_impl(ctx):
    return [BoolFlagInfo(value = ctx.build_setting_value)]

bool_flag = rule(
    implementation = _bool_flag_impl,
    build_setting = config.bool(flag = True),
)
