# SPDX-License-Identifier: Apache-2.0
"""A repository around a library that the system's packages installed."""

# The compiler searches these itself.
_STANDARD_DIRS = ["/usr/include", "/usr/local/include"]

_LIBRARY = """
cc_library(
    name = "{name}",
    defines = {defines},
    hdrs = {hdrs},
    includes = {includes},
    linkopts = {linkopts},
)
"""

def missing(rctx, what, package):
    """Stops with one sentence that names what is missing and how to get it."""
    # bzlmod appends the name in MODULE.bazel to generated names.
    repo = rctx.name.replace("+", "~").split("~")[-1]
    fail(("{what} is missing, which @{repo} needs. On Debian: apt-get install {package}. " +
          "Elsewhere: define a repository named {repo} before crosshatch_deps(), or, with " +
          "bzlmod, override_repo the one of Crosshatch's extension.").format(
        what = what,
        repo = repo,
        package = package,
    ))

def _system_library_impl(rctx):
    found = None
    for directory in rctx.attr.include_dirs or _STANDARD_DIRS:
        if not found and rctx.path(directory + "/" + rctx.attr.header).exists:
            found = directory
    if not found:
        missing(rctx, "The header " + rctx.attr.header, rctx.attr.package)

    # Bazel refuses absolute paths outside of the compiler's directories. A link to the directory
    # counts as one file in a sandbox.
    linked = found not in _STANDARD_DIRS
    if linked:
        rctx.symlink(found, "include")
    build = [
        'load("@rules_cc//cc:defs.bzl", "cc_library")',
        'package(default_visibility = ["//visibility:public"])',
    ]
    for name, linkopts in rctx.attr.libraries.items():
        build.append(_LIBRARY.format(
            name = name,
            defines = repr(rctx.attr.defines),
            hdrs = '["include"]' if linked else "[]",
            includes = '["include"]' if linked else "[]",
            linkopts = repr(linkopts),
        ))
    rctx.file("BUILD.bazel", "\n".join(build))

system_library = repository_rule(
    implementation = _system_library_impl,
    local = True,
    attrs = {
        "defines": attr.string_list(
            doc = "Preprocessor definitions for whoever depends on it.",
        ),
        "header": attr.string(
            mandatory = True,
            doc = "A header that is there when the library is.",
        ),
        "include_dirs": attr.string_list(
            doc = "Where to look for it; the compiler's own directories if empty.",
        ),
        "libraries": attr.string_list_dict(
            mandatory = True,
            doc = "Each target of the repository with its linker flags.",
        ),
        "package": attr.string(
            mandatory = True,
            doc = "The Debian packages that bring it.",
        ),
    },
)
