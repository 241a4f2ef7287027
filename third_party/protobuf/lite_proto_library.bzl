# SPDX-License-Identifier: Apache-2.0
"""lite_proto_library: the messages of a .proto file as C++.

The system's protoc writes the code, which belongs to the system's library of
the same version.
"""

load("@rules_cc//cc:defs.bzl", "cc_library")

# The embedded file name equals the header's, so that generated code includes
# "crosshatch/<package>/<file>.pb.h".
_COMPILE = """
set -e
out=$$(mktemp -d)
trap 'rm -rf "$$out"' EXIT
source=$(location {src})
protoc --proto_path=crosshatch/{package}=$$(dirname "$$source") \\
  --cpp_out="$$out" crosshatch/{package}/{src}
mv "$$out"/crosshatch/{package}/* $(RULEDIR)/
"""

def lite_proto_library(name, src, visibility):
    """A library of messages with its header <name>.pb.h.

    Args:
      name: of the library.
      src: <name>.proto, with `option optimize_for = LITE_RUNTIME`.
      visibility: of the library.
    """
    if src != name + ".proto":
        fail("{}: its source is {}.proto, not {}".format(name, name, src))
    package = native.package_name()
    native.genrule(
        name = name + "_code",
        srcs = [src],
        outs = [name + ".pb.h", name + ".pb.cc"],
        cmd = _COMPILE.format(package = package, src = src),
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [name + ".pb.cc"],
        hdrs = [name + ".pb.h"],
        # Ignore warnings in generated code.
        copts = ["-std=c++20", "-w"],
        include_prefix = "crosshatch/" + package,
        strip_include_prefix = "/" + package,
        visibility = visibility,
        deps = ["@protobuf_lite"],
    )
