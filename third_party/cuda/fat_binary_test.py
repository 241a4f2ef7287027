#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: fat_binary_test.py OBJECT ARCHITECTURE...

Expects that an object of nvcc contains code for each architecture, such as 90
for sm_90, and the PTX of the first, which newer devices compile. It replaces
cuobjdump, which some toolkits lack.
"""

import struct
import sys

_MAGIC = 0xBA55ED50
_PTX = 1
_CODE = 2


def section(elf, name):
    """Returns the bytes of a section of a 64-bit little-endian object, or None."""
    (sections,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, sections + i * size) for i in range(count)]
    for at, _, _, _, offset, length in headers:
        start = headers[names][4] + at
        if elf[start:elf.index(b"\0", start)] == name:
            return elf[offset:offset + length]
    return None


def entries(binary):
    """Yields (kind, architecture) of the contents of fat binaries."""
    found = set()
    at = 0
    while at + 16 <= len(binary):
        magic, _, header, length = struct.unpack_from("<IHHQ", binary, at)
        if magic != _MAGIC:
            raise ValueError("no fat binary at byte %d of %d" % (at, len(binary)))
        entry = at + header
        at = entry + length
        while entry < at:
            kind, _, header, length = struct.unpack_from("<HHIQ", binary, entry)
            (architecture,) = struct.unpack_from("<I", binary, entry + 28)
            found.add((kind, architecture))
            entry += header + length
        at += -at % 8
    return found


def main(path, architectures):
    with open(path, "rb") as file:
        binary = section(file.read(), b".nv_fatbin")
    if binary is None:
        sys.exit("%s holds no code for devices" % path)
    found = entries(binary)
    expected = {(_CODE, a) for a in architectures} | {(_PTX, architectures[0])}
    names = {_CODE: "sm_%d", _PTX: "PTX of compute_%d"}
    for kind, architecture in sorted(found):
        print(names[kind] % architecture)
    missing = [names[kind] % a for kind, a in sorted(expected - found)]
    if missing:
        sys.exit("%s lacks %s" % (path, ", ".join(missing)))


if __name__ == "__main__":
    main(sys.argv[1], [int(a) for a in sys.argv[2:]])
