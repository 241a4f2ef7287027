# SPDX-License-Identifier: Apache-2.0
"""The layers: which top-level package may depend on which.

This table is the only definition. The macros of crosshatch.bzl refuse a
dependency on a higher layer, the package groups of //:BUILD (visibility) follow
from the table, and //tests:layers_test checks the resulting build graph.
"""

_THROUGH_NN = ["base", "tensor", "comm", "mesh", "dtensor", "nn"]
_THROUGH_EXTENSIONS = _THROUGH_NN + ["fsdp", "tp", "extensions"]

# Package -> the packages that it may depend on, in addition to itself and third_party.
LAYERS = {
    "base": [],
    "tensor": ["base"],
    "comm": ["base", "tensor"],
    "launch": ["base", "tensor", "comm"],
    "mesh": ["base", "tensor", "comm"],
    "dtensor": ["base", "tensor", "comm", "mesh"],
    "nn": ["base", "tensor", "comm", "mesh", "dtensor"],
    "fsdp": _THROUGH_NN,
    "tp": _THROUGH_NN,
    "extensions": _THROUGH_NN + ["fsdp", "tp"],
    "checkpoint": _THROUGH_EXTENSIONS,
    "verify": _THROUGH_EXTENSIONS + ["checkpoint", "launch"],
    "examples": _THROUGH_EXTENSIONS + ["checkpoint", "launch", "verify"],
    "emulation": ["base"],
    "testing": ["base", "tensor", "comm", "mesh"],
}

# Package -> its sub-packages, each of which may depend on previous ones. The package itself, their
# public API, and its tests/ may depend on all.
STEPS = {
    "dtensor": ["layout", "redistribution", "rules", "dispatch"],
}

# Package of testonly helpers -> the packages whose tests may use it. Libraries of packages below it
# may not.
TEST_HELPERS = {
    "emulation": [
        "tensor",
        "comm",
    ],
    "testing": [
        "mesh",
        "dtensor",
        "nn",
        "fsdp",
        "tp",
        "extensions",
        "checkpoint",
        "verify",
        "examples",
    ],
}

# Packages that may depend on all of them.
_CROSSING = ["tests", "benchmarks", "docs"]

def users_of(layer):
    """Returns the package specifications of everything that may use `layer`."""
    users = [layer] + [p for p in LAYERS if layer in LAYERS[p]]
    users += TEST_HELPERS.get(layer, []) + _CROSSING
    return ["//" + p + "/..." for p in users]

def _split(package):
    """Returns ("dtensor", "rules") for "dtensor/rules", ("dtensor", "") for "dtensor"."""
    layer, _, step = package.partition("/")
    return layer, step

def _check_step(layer, package, name, dep):
    """Fails if `dep`, of the same layer, is of a step above that of `package`."""
    steps = STEPS.get(layer, [])
    step = _split(package)[1]
    other = _split(dep[2:].split(":")[0])[1]
    if step in steps and other not in steps[:steps.index(step) + 1]:
        fail("//{}:{} may not depend on {}: //{} sees only {}".format(
            package,
            name,
            dep,
            package,
            ", ".join(["//" + layer + "/" + s for s in steps[:steps.index(step)]]) or
            "the layers below",
        ))

def check_layer(package, name, deps):
    """Fails if a target of `package` depends on a package above it.

    Args:
      package: the package of the target.
      name: the target's name, for the message.
      deps: its dependencies. What a select() holds cannot be read here; the
        visibility of its targets and //tests:layers_test still apply to it.
    """
    layer = _split(package)[0]
    if layer not in LAYERS or type(deps) != "list":
        return
    for dep in deps:
        if not dep.startswith("//"):
            continue
        other = _split(dep[2:].split(":")[0])[0]
        if other == layer:
            _check_step(layer, package, name, dep)
        if other in TEST_HELPERS and layer in TEST_HELPERS[other]:
            continue
        if other != layer and other != "third_party" and other not in LAYERS[layer]:
            fail("//{}:{} may not depend on {}: //{} sees only {}".format(
                package,
                name,
                dep,
                layer,
                ", ".join(["//" + p for p in LAYERS[layer]]) or "third_party",
            ))

def layer_groups():
    """Defines one package group, users_of_<layer>, for each layer."""
    for layer in LAYERS:
        native.package_group(
            name = "users_of_" + layer,
            packages = users_of(layer),
        )

def step_groups(layer):
    """Defines one package group, users_of_<step>, for each step of a package."""
    steps = STEPS[layer]
    for i, step in enumerate(steps):
        native.package_group(
            name = "users_of_" + step,
            packages = ["//" + layer, "//" + layer + "/tests"] +
                       ["//" + layer + "/" + s + "/..." for s in steps[i:]],
        )
