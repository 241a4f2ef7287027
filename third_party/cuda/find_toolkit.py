#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds a CUDA toolkit, for the repository @local_config_cuda.

Prints one JSON object: `nvcc` ("" without a toolkit), `includes` and
`libraries` (a library's linker flags, or null if missing), `searched` (a line
for each place with what it lacks), `devices` (the number of this machine's
GPUs), `architectures` (to compile for, from $CROSSHATCH_CUDA_ARCHITECTURES,
oldest first) and `nccl_version` (such as 22809 for 2.28.9, 0 without NCCL).

If set, $CUDA_HOME or $CUDA_PATH is the only place. Otherwise it uses the first
of the usual ones, then Python packages. These are in a directory named nvidia:
since CUDA 13 the toolkit in one subdirectory, before that in one per part. NCCL
and cuDNN have their own.
"""

import glob
import json
import os
import pathlib
import re
import shutil
import sys
import sysconfig

# Libraries to link, and the names of their files.
LIBRARIES = {"cublas_lt": "libcublasLt", "cudart": "libcudart", "nccl": "libnccl"}

# Tensor cores with bfloat16 (tensor/backends/cuda/capability.cc).
LEAST_ARCHITECTURE = 80


def directories(root, names):
    return [root / name for name in names if (root / name).is_dir()]


def parts_of(place):
    """Returns the directories of a toolkit's parts at `place`, the compiler's
    first."""
    if (place / "bin/nvcc").exists():
        beside = place.parent if place.parent.name == "nvidia" else None
    else:
        # Python packages: `place` is their directory nvidia/.
        beside = place
        whole = sorted(place.glob("cu[0-9]*/bin/nvcc"), reverse=True)
        whole += place.glob("cuda_nvcc/bin/nvcc")
        if not whole:
            return []
        place = whole[0].parent.parent
    parts = [place]
    if beside:
        split = place.name == "cuda_nvcc"
        parts += [
            part for part in sorted(beside.iterdir())
            if part.is_dir() and part != place and
            (split or part.name in ("nccl", "cudnn"))
        ]
    return parts


def flags_of(stem, libs):
    """Returns the linker flags of a library, or None if none of `libs` has it."""
    for lib in libs:
        search = ["-L%s" % lib, "-Wl,-rpath,%s" % lib]
        if stem == "libcudart" and (lib / "libcudart_static.a").exists():
            return ["-L%s" % lib, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        if (lib / (stem + ".so")).exists():
            return search + ["-l" + stem[len("lib"):]]
        # Python packages only have the file named by the soname.
        for file in sorted(lib.glob(stem + ".so.*")):
            return search + ["-l:" + file.name]
    return None


def toolkit_at(place):
    """Returns the toolkit, or a string that names what is missing."""
    parts = parts_of(place)
    if not parts:
        return "no bin/nvcc"
    includes = [d for part in parts for d in directories(part, ["include"])]
    if not any((d / "cuda_runtime.h").exists() for d in includes):
        return "bin/nvcc, but no include/cuda_runtime.h"
    libs = [
        d for part in parts for d in directories(
            part, ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"])
    ]
    libraries = {name: flags_of(stem, libs) for name, stem in LIBRARIES.items()}
    if libraries["cudart"] is None:
        return "bin/nvcc, but no libcudart"
    return {
        "nvcc": str(parts[0] / "bin/nvcc"),
        "includes": [str(d) for d in includes],
        "libraries": libraries,
    }


def newest(pattern):
    def version(path):
        return [int(n) for n in re.findall(r"\d+", os.path.basename(path))]

    return sorted(glob.glob(pattern), key=version, reverse=True)


def places(environment):
    """Returns the places to search, in order, each with its origin."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            return [(environment[variable], "$" + variable)]
    found = [(place, "") for place in ["/usr/local/cuda"] + newest("/usr/local/cuda-*") +
             ["/opt/cuda", "/usr/lib/cuda"]]
    nvcc = shutil.which("nvcc", path=environment.get("PATH"))
    if nvcc:
        found.append((os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "nvcc in $PATH"))
    sites = []
    if environment.get("VIRTUAL_ENV"):
        sites += newest(environment["VIRTUAL_ENV"] + "/lib/python3*/site-packages")
    sites += [sysconfig.get_path("purelib")]
    return found + [(site + "/nvidia", "Python packages") for site in sites]


def find(environment):
    answer = {"nvcc": "", "includes": [], "libraries": dict.fromkeys(LIBRARIES), "searched": []}
    for place, why in places(environment):
        toolkit = toolkit_at(pathlib.Path(place))
        if isinstance(toolkit, dict):
            answer.update(toolkit)
            break
        answer["searched"].append("%s%s: %s" % (place, " (%s)" % why if why else "", toolkit))
    return answer


def architectures(environment):
    """Returns compute capabilities without dots. Raises ValueError for others."""
    text = environment.get("CROSSHATCH_CUDA_ARCHITECTURES", "80,90,100")
    if not re.fullmatch(r"[1-9]\d{1,2}(,[1-9]\d{1,2})*", text):
        raise ValueError(
            "CROSSHATCH_CUDA_ARCHITECTURES=%s is no list of compute capabilities without their "
            "dots, such as 80,90,100" % text)
    numbers = sorted({int(architecture) for architecture in text.split(",")})
    if numbers[0] < LEAST_ARCHITECTURE:
        raise ValueError("CROSSHATCH_CUDA_ARCHITECTURES=%s: the kernels need %d or later" %
                         (text, LEAST_ARCHITECTURE))
    return numbers


def nccl_version(includes):
    for include in includes:
        try:
            text = (pathlib.Path(include) / "nccl.h").read_text()
        except OSError:
            continue
        found = re.search(r"^#define NCCL_VERSION_CODE (\d+)$", text, re.MULTILINE)
        if found:
            return int(found[1])
    return 0


def count_devices(root="/dev"):
    return len([name for name in os.listdir(root) if re.fullmatch(r"nvidia\d+", name)])


if __name__ == "__main__":
    try:
        compiled_for = architectures(os.environ)
    except ValueError as error:
        sys.exit(str(error))
    toolkit = find(os.environ)
    json.dump(
        dict(toolkit, architectures=compiled_for, devices=count_devices(),
             nccl_version=nccl_version(toolkit["includes"])), sys.stdout)
