# SPDX-License-Identifier: Apache-2.0
"""grpc_library: a .proto file as C++, its service as gRPC's C++.

The system's protoc and grpc_cpp_plugin write the code, which belongs to the
system's libraries of the same version.
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
  --cpp_out="$$out" --grpc_out="$$out" \\
  --plugin=protoc-gen-grpc="$$(command -v grpc_cpp_plugin)" \\
  crosshatch/{package}/{src}
mv "$$out"/crosshatch/{package}/* $(RULEDIR)/
"""

# The system's gRPC is not instrumented, so ThreadSanitizer reports false races in its templates.
# Sources that include its headers are compiled without it.
GRPC_COPTS = ["-fno-sanitize=thread"]

def grpc_library(name, src, visibility):
    """Two libraries: <name> has the messages, <name>_grpc the service.

    Args:
      name: of the messages' library; also that of the headers, <name>.pb.h and
        <name>.grpc.pb.h.
      src: <name>.proto.
      visibility: of both.
    """
    if src != name + ".proto":
        fail("{}: its source is {}.proto, not {}".format(name, name, src))
    package = native.package_name()
    native.genrule(
        name = name + "_code",
        srcs = [src],
        outs = [
            name + suffix
            for suffix in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]
        ],
        cmd = _COMPILE.format(package = package, src = src),
        visibility = ["//visibility:private"],
    )
    for library, suffix, deps in [
        (name, ".pb", ["@grpc//:protobuf"]),
        (name + "_grpc", ".grpc.pb", [":" + name, "@grpc"]),
    ]:
        cc_library(
            name = library,
            srcs = [name + suffix + ".cc"],
            hdrs = [name + suffix + ".h"],
            # Ignore warnings in generated code.
            copts = ["-std=c++20", "-w"] + GRPC_COPTS,
            include_prefix = "crosshatch/" + package,
            strip_include_prefix = "/" + package,
            visibility = visibility,
            deps = deps,
        )
